"""A job's reports as rows of CSV: one row a rank and iteration. Knows no files. Times in seconds.

A reading of a moment stands in the row of the iteration that started with it: it came with the report before. One
that is an average since the read before stands, with over_ before its name, in the row of the iteration that it is
over. Blank = unknown.
"""

from collections.abc import Sequence

from lbbsp.protocol import Report
from lbbsp.recording import OVER, PHASES, VERSION

AVERAGED = frozenset(
    (
        "cpu_busy_share",
        "steal_share",
        "own_cpu_cores",
        "run_delay_share",
        "preemptions_per_s",
        "psi_cpu_share",
        "psi_memory_share",
        "psi_io_share",
        "gpu_busy_share",
    )
)
"""Sensors that tell the mean since they were last read; all others tell of a moment."""

FIRST = (
    "worker",
    "iteration",
    "start_s",
    "samples",
    "own_time_s",
    "wait_s",
    "input_s",
    "draws",
    "settled",
    "recording_version",
    *PHASES,
)
"""Columns before the sensors. worker: the rank. start_s: when the report was made less its own time. wait_s: for the
others, at the barrier before this iteration. samples, own_time_s, input_s: of all draws together. settled: 0 where the
time holds one-off costs. prepare_s, forward_s, backward_s: of own_time_s, where they were told."""


class Rows:
    """Rows of a running job, collected until they are taken.

    Args:
        sensors: names, in the order of the readings.
    """

    def __init__(self, sensors: Sequence[str]) -> None:
        over = [place for place, name in enumerate(sensors) if name in AVERAGED]
        at_start = [place for place, name in enumerate(sensors) if name not in AVERAGED]
        names = [*FIRST, *(sensors[place] for place in at_start), *(OVER + sensors[place] for place in over)]
        self.header = ",".join(names) + "\n"
        self._over, self._at_start = over, at_start
        self._unknown = [""] * len(at_start)
        self._sent: dict[int, tuple[int, list[str]]] = {}
        self._lines: list[str] = []

    def add(self, report: Report, readings: Sequence[float], heard_s: float) -> None:
        """A report with its readings, heard at that time."""
        told = [f"{value:.6g}" if value == value else "" for value in readings]
        iteration, known = self._sent.get(report.rank, (-1, self._unknown))
        cells = (
            f"{report.rank},{report.iteration},{heard_s - report.held_s - report.own_time_s:.6f},{report.samples},"
            f"{report.own_time_s:.6g},{report.wait_s:.6g},{report.input_s:.6g},{report.draws},{report.settled:d},{VERSION}",
            *_phases(report),
            *(known if iteration == report.iteration - 1 else self._unknown),
            *(told[place] for place in self._over),
        )
        self._lines.append(",".join(cells))
        self._sent[report.rank] = report.iteration, [told[place] for place in self._at_start]

    def taken(self) -> list[str]:
        """The rows so far, which are forgotten here."""
        lines, self._lines = self._lines, []
        return lines


def _phases(report: Report) -> tuple[str, ...]:
    if len(report.phases_s) != len(PHASES):
        return ("",) * len(PHASES)
    return tuple(f"{phase_s:.6g}" for phase_s in report.phases_s)
