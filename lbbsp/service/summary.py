"""The lines that the manager logs of a job: one a minute, and once what changes in between.

Times in seconds by the manager's clock.
"""

import logging

import numpy as np
import numpy.typing as npt

from lbbsp.core.manager import JobStats
from lbbsp.service.job import Job
from lbbsp.service.rejections import Rejections

log = logging.getLogger(__name__)

LINE_EVERY_S = 60.0
SHOWN_IN_FULL = 16
OBSERVED_ITERATIONS = 100
MODES = {
    "equal": "equal sizes would have done as well lately or better: back to the equal split, until balancing would win",
    "balanced": "balanced sizes would have won lately: balancing again",
}
"""What a change of JobStats.mode means."""


class Summary:
    """Looks at one job about once a second and says what is new."""

    def __init__(self, now_s: float) -> None:
        self._line_due_s = now_s + LINE_EVERY_S
        self._mode = ""
        self._said_saved = False

    def look(self, job: Job, rejections: Rejections, now_s: float) -> None:
        """Log what is due."""
        live = job.live
        if live is None:
            return
        stats = live.stats()
        self._silence(job, now_s, stats.iteration_time_s)
        self._say_mode(job.name, stats)
        self._say_saved(job.name, stats)
        if now_s >= self._line_due_s:
            self._line_due_s = now_s + LINE_EVERY_S
            log.info("job %r: %s", job.name, line(job, rejections))

    def _say_mode(self, name: str, stats: JobStats) -> None:
        if self._mode and stats.mode != self._mode and stats.mode in MODES:
            log.warning("job %r: %s", name, MODES[stats.mode])
        self._mode = stats.mode

    def _say_saved(self, name: str, stats: JobStats) -> None:
        """What an observing job would save, once its forecasts have settled."""
        if self._said_saved or stats.mode != "observe" or stats.iteration < OBSERVED_ITERATIONS:
            return
        self._said_saved = True
        log.info(
            "job %r: balanced sizes would save about %.0f %% of the time (lately, equal sizes kept; mode observe)",
            name,
            100 * stats.saved_share,
        )

    def _silence(self, job: Job, now_s: float, iteration_time_s: float) -> None:
        live = job.live
        if live is None:
            return
        change = live.silence.look(now_s, iteration_time_s)
        for rank in change.fell_silent[:SHOWN_IN_FULL]:
            quiet_s = now_s - live.silence.heard_s[rank]
            log.warning(
                "job %r: rank %d is silent for %.0f s; its last report is of iteration %d, others are at %d",
                job.name, rank, quiet_s, live.silence.iteration[rank], live.newest_iteration,
            )  # fmt: skip
        for rank in change.came_back[:SHOWN_IN_FULL]:
            log.info("job %r: rank %d reports again", job.name, rank)
        if change.rests:
            log.info("job %r: no rank reports now, none is behind: validation, a checkpoint, a pause", job.name)


def line(job: Job, rejections: Rejections) -> str:
    """Iteration time, wait share, lag and sizes of a running job in one line."""
    if job.live is None:
        return "not all ranks are there yet"
    stats = job.live.stats()
    rejected = ", ".join(f"{kind} {count}" for kind, count in sorted(rejections.of(job.name).items()))
    return (
        f"iteration {job.live.newest_iteration}: {stats.iteration_time_s * 1e3:.1f} ms, "
        f"wait {stats.wait_share:.1%}, lag {stats.lag}, sizes {shown(stats.sizes)}"
        + (f"; silent {np.flatnonzero(job.live.silence.silent).tolist()}" if job.live.silence.silent.any() else "")
        + (f"; rejected: {rejected}" if rejected else "")
    )


def shown(sizes: npt.NDArray[np.int64]) -> str:
    """Sizes in full for a few ranks, their spread for many."""
    if len(sizes) <= SHOWN_IN_FULL:
        return " ".join(str(size) for size in sizes)
    low, middle, high = np.percentile(sizes, (0, 50, 100))
    return f"{low:.0f} / {middle:.0f} / {high:.0f} (least, median, most of {len(sizes)} ranks)"
