"""Recordings of running jobs (`lbbsp manager --record DIR`): every sound report becomes a row of a file.

A report costs the decision path one append. Rows are made of them in small slices while no message waits, and every
half second what there is goes to the thread that compresses and writes. What can't be kept is counted; no plan
waits for it. Times in seconds by the manager's clock; in the files, seconds since 1970.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lbbsp.errors import ConfigError
from lbbsp.protocol import Report
from lbbsp.service.job import Job
from lbbsp.service.live import Live
from lbbsp.service.record_files import Files, Tape
from lbbsp.service.record_rows import Rows
from lbbsp.service.table import JobTable

log = logging.getLogger(__name__)

EVERY_S = 0.5
SLICE = 16
"""Rows made between two looks for a message: about 0.1 ms."""
MOST_WAITING = 50_000
"""Reports of all jobs that may wait to become rows; more are lost."""


@dataclass(frozen=True)
class RecordOptions:
    """Where recordings go, and how much of them is kept."""

    directory: Path
    part_mib: float = 64.0
    """A file that has grown to this is closed, and another begun."""
    most_mib: float = 2048.0
    """Of all files that this manager wrote; beyond it the oldest go."""
    parquet: bool = False
    """Turn each file that is closed into Parquet."""

    def check(self) -> None:
        """Raise ConfigError where the sizes make no sense."""
        if not 0 < self.part_mib <= self.most_mib:
            raise ConfigError(
                f"a recording's files of {self.part_mib:g} MiB within {self.most_mib:g} MiB: "
                "wanted more than 0, and no file larger than all of them together"
            )


@dataclass
class _Take:
    """A running job's rows and where they go."""

    rows: Rows
    tape: Tape


class Recorder:
    """Records all jobs of a manager.

    Args:
        options: where and how much.
        jobs: the manager's, by name: what runs no longer is closed.
        clock: seconds, monotonic.
    """

    def __init__(
        self, options: RecordOptions, jobs: Mapping[str, Job], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        options.check()
        self.lost = 0
        """Reports that came faster than rows could be made of them."""
        self._jobs = jobs
        self._files = Files(options.directory, options.part_mib, options.most_mib, options.parquet)
        self._epoch_s = time.time() - clock()
        self._due_s = clock()
        self._waiting: deque[tuple[Live, Report, float]] = deque()
        self._left = 0
        self._takes: dict[Live, _Take] = {}
        self._broken = False

    def add(self, live: Live, report: Report, now_s: float) -> None:
        """Keep a report that a running job has taken."""
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append((live, report, now_s))
            return
        self.lost += 1
        if self.lost == 1:
            log.warning("recording: more than %d reports wait to be written; more are lost", MOST_WAITING)

    def spend(self, now_s: float, messages_wait: Callable[[], bool]) -> None:
        """Make rows of reports, until a message waits; call it whenever nothing else is to do."""
        if self._broken or (not self._left and now_s < self._due_s):
            return
        try:
            self._work(now_s, messages_wait)
        except Exception:  # a fault of ours: the jobs go on, unrecorded
            log.exception("recording ends: a fault of the manager's own")
            self._broken = True
            self._waiting.clear()

    def close(self) -> None:
        """Write what is there and end; waits a few seconds at most."""
        self.spend(float("inf"), lambda: False)
        for take in self._takes.values():
            self._files.close(take.tape)
        self._takes.clear()
        self._files.end()

    def _work(self, now_s: float, messages_wait: Callable[[], bool]) -> None:
        self._left = self._left or len(self._waiting)
        while self._left:
            for _ in range(min(SLICE, self._left)):
                self._row(*self._waiting.popleft())
                self._left -= 1
            if messages_wait():
                return
        self._due_s = now_s + EVERY_S
        for live, take in list(self._takes.items()):
            self._files.write(take.tape, take.rows.taken())
            if not self._runs(live):
                self._files.close(self._takes.pop(live).tape)

    def _row(self, live: Live, report: Report, now_s: float) -> None:
        take = self._takes.get(live)
        if take is None:
            rows = Rows(live.hello.sensors)
            tape = Tape(live.hello.job, live.hello.incarnation, rows.header)
            take = self._takes[live] = _Take(rows, tape)
        take.rows.add(report, live.readings(report), self._epoch_s + now_s)

    def _runs(self, live: Live) -> bool:
        job = self._jobs.get(live.hello.job)
        return job is not None and job.live is live


def recording(options: RecordOptions, table: JobTable) -> Recorder:
    """A recorder of all jobs of a table.

    Raises:
        ConfigError: options that make no sense.
    """
    recorder = Recorder(options, table.jobs)
    table.tap = recorder.add
    log.info("recording jobs into %s", options.directory)
    return recorder
