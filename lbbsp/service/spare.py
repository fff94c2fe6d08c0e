"""Spare time for predictors that learn off the decision path: a small share of one core, while nothing waits.

Where the manager runs on cores that train, what it takes makes a rank slow: there it takes less.
Times in seconds by the manager's clock.
"""

from collections.abc import Callable

from lbbsp.service.table import JobTable

SHARE = 0.05
"""Of one core, over all jobs ..."""
BUSY_SHARE = 0.01
"""... and where less than IDLE_CORES are idle."""
IDLE_CORES = 0.5
LEAST_S, MOST_S = 1e-3, 20e-3
"""Saved up to at least the first before any is spent, and never beyond the second."""


class Spare:
    """Lets the jobs that have made a plan lately train, in turn.

    Args:
        table: the jobs.
        clock: seconds, monotonic.
        waiting: whether a message waits; training then ends after its step of about a millisecond.
        idle: how many of our cores are idle at a time of the clock; NaN = not known.
    """

    def __init__(
        self, table: JobTable, clock: Callable[[], float], waiting: Callable[[], bool],
        idle: Callable[[float], float] = lambda _: float("nan"),
    ) -> None:  # fmt: skip
        self._table = table
        self._clock = clock
        self._waiting = waiting
        self._idle = idle
        self._saved_s = 0.0
        self._at_s = clock()

    def spend(self) -> None:
        """Spend what has been saved up, if there is a job that wants it."""
        if not self._table.planned:
            return
        now_s = self._clock()
        if now_s - self._at_s >= LEAST_S / SHARE:
            share = BUSY_SHARE if self._idle(now_s) < IDLE_CORES else SHARE
            self._saved_s = min(MOST_S, self._saved_s + share * (now_s - self._at_s))
            self._at_s = now_s
        while self._table.planned and self._saved_s >= LEAST_S and not self._waiting():
            self._train(next(iter(self._table.planned)))

    def _train(self, name: str) -> None:
        del self._table.planned[name]
        job = self._table.jobs.get(name)
        if job is None or job.live is None:
            return
        start_s = self._clock()
        until_s = start_s + self._saved_s
        job.live.sizer.train(lambda: self._clock() < until_s and not self._waiting())
        self._saved_s -= self._clock() - start_s
