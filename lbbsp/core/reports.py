"""Reports of a job gathered by iteration, and what is wrong with those that are rejected.

Knows nothing of speeds or plans. An iteration closes when all ranks have reported it, or when later reports prove
that the missing ones are lost. Times in seconds, sizes in samples.
"""

from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from lbbsp.errors import LbbspError

Array = npt.NDArray[np.float64]

FAR_AHEAD = 1000
"""Iterations beyond the newest closed one that a report may be of."""
MOST_OPEN = 8
"""Iterations gathered at once; beyond it the one with the fewest reports is dropped. More with `together`."""
FOLLOWS = 96
"""A report of an iteration this near behind the newest closed one proves that what is missing before it is lost. Three
times what a report may be of at most: the next may be so far ahead, one below the limit as far behind that."""
ABSURD_FACTOR = 1e4
"""An own time that differs more than this from the rank's last one is absurd."""
ABSURD_IN_A_ROW = 20
"""So many absurd times in a row are the rank's new usual: the earlier one was absurd."""
LONGEST_S = 1e6


class Rejection(StrEnum):
    """Why a report was rejected."""

    UNKNOWN_RANK = "unknown rank"
    STALE = "stale"
    DUPLICATE = "duplicate"
    FUTURE = "future"
    ABSURD = "absurd"
    SENSORS = "sensors"


class RejectedReport(LbbspError):  # noqa: N818 - the name that its catchers read
    """A report that changed nothing; kind says why."""

    def __init__(self, kind: Rejection, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Gathering:
    """The reports of one iteration as arrays over ranks; NaN = no report."""

    def __init__(self, iteration: int, ranks: int, sensors: int) -> None:
        self.iteration = iteration
        self.iterations = 1
        """Those that reports of this one are the means of, this one the last of them."""
        self.count = 0
        self.samples: Array = np.full(ranks, np.nan)
        """A draw's samples, averaged over the draws of the iteration."""
        self.time_s: Array = np.full(ranks, np.nan)
        """A draw's own time, averaged likewise."""
        self.draws: Array = np.zeros(ranks)
        self.wait_s: Array = np.zeros(ranks)
        self.input_s: Array = np.zeros(ranks)
        """The part of a draw's own time that was spent waiting for the loader."""
        self.settled = np.zeros(ranks, dtype=np.bool_)
        self.sensors: Array = np.full((ranks, sensors), np.nan)
        self.claimed: Array = np.zeros(ranks)
        """Of the samples, those that no plan gave the rank."""
        self.heard = bytearray(ranks)

    @cached_property
    def sound(self) -> tuple[Array, Array]:
        """Samples and own time a draw; NaN where a report is missing or says nothing of speed. Once it is closed."""
        sound = self.settled & (self.draws > 0)
        return np.where(sound, self.samples, np.nan), np.where(sound, self.time_s, np.nan)


class Inbox:
    """Checks each report and gathers the sound ones.

    Args:
        ranks: of the job.
        global_batch: no rank processes more in a draw.
        sensors: readings in each report.
    """

    def __init__(self, ranks: int, global_batch: int, sensors: int = 0) -> None:
        self.closed: int | None = None
        """The newest iteration that was closed."""
        self._ranks, self._global_batch, self._sensors = ranks, global_batch, sensors
        self._open: dict[int, Gathering] = {}
        self._usual_s: list[float] = [0.0] * ranks
        self._absurd: list[int] = [0] * ranks
        self._far: dict[int, int] = {}
        self._together: dict[int, int] = {}
        """Ranks that send several reports at once, and how many."""

    def add(
        self, rank: int, iteration: int, samples: int, own_time_s: float, draws: int, wait_s: float, settled: bool,
        sensors: Sequence[float], input_s: float = 0.0, together: int = 1, iterations: int = 1,
    ) -> list[Gathering]:  # fmt: skip
        """Take one report; the iterations that it closes, oldest first.

        An iteration that lacks reports waits for as many more as any rank sends `together`. A report of several
        `iterations` counts for the last of them, and for those before that other ranks have reported.

        Raises:
            RejectedReport: nothing was taken.
        """
        self._check_values(rank, samples, own_time_s, draws, wait_s, sensors)
        self._check_iteration(rank, iteration)
        if samples:
            self._check_usual(rank, own_time_s / draws)
        if together > 1 or self._together:
            self._say_together(rank, together)
        closed: list[Gathering] = []
        for number in self._meant(rank, iteration, iterations):
            open_ = self._open.get(number) or self._begin(number)
            open_.iterations = max(open_.iterations, iterations)
            open_.heard[rank] = 1
            open_.count += 1
            open_.samples[rank] = samples / draws
            open_.time_s[rank] = own_time_s / draws
            open_.draws[rank] = draws
            open_.wait_s[rank] = wait_s
            open_.input_s[rank] = min(input_s, own_time_s) / draws
            open_.settled[rank] = settled
            if self._sensors:
                open_.sensors[rank] = sensors
            closed += self._close(open_)
        return closed

    def _meant(self, rank: int, iteration: int, iterations: int) -> Sequence[int]:
        """What a report is good for, oldest first."""
        if iterations == 1:
            return (iteration,)
        before = range(iteration - iterations + 1, iteration)
        return [
            *(number for number in before if number in self._open and not self._open[number].heard[rank]),
            iteration,
        ]

    def _check_values(
        self, rank: int, samples: int, own_time_s: float, draws: int, wait_s: float, sensors: Sequence[float]
    ) -> None:
        if not 0 <= rank < self._ranks:
            raise RejectedReport(Rejection.UNKNOWN_RANK, f"rank {rank} of a job with ranks 0 .. {self._ranks - 1}")
        if not 0 < own_time_s <= LONGEST_S or not 0 <= wait_s <= LONGEST_S:
            raise RejectedReport(
                Rejection.ABSURD,
                f"rank {rank}: own time {own_time_s} s, wait {wait_s} s: wanted 0 < own time <= {LONGEST_S:g}, "
                f"0 <= wait <= {LONGEST_S:g}",
            )
        if draws < 1 or not 0 <= samples <= self._global_batch * draws:
            raise RejectedReport(
                Rejection.ABSURD,
                f"rank {rank}: {samples} samples in {draws} draws of global batch {self._global_batch}",
            )
        if len(sensors) != self._sensors:
            raise RejectedReport(
                Rejection.SENSORS, f"rank {rank}: {len(sensors)} sensor readings, wanted {self._sensors}"
            )

    def _check_iteration(self, rank: int, iteration: int) -> None:
        if iteration < 0 or (self.closed is not None and iteration <= self.closed):
            raise RejectedReport(Rejection.STALE, f"rank {rank}: iteration {iteration} is over or never was")
        if self.closed is not None and iteration > self.closed + FAR_AHEAD:
            self._check_far(rank, iteration)
        elif self._far:
            self._far.pop(rank, None)
        open_ = self._open.get(iteration)
        if open_ is not None and open_.heard[rank]:
            raise RejectedReport(Rejection.DUPLICATE, f"rank {rank}: iteration {iteration} was reported before")

    def _check_far(self, rank: int, iteration: int) -> None:
        """All ranks far ahead, and together: reports were lost for long, the job is there."""
        self._far[rank] = iteration
        together = [other for other in self._far.values() if abs(other - iteration) < MOST_OPEN]
        if len(together) < self._ranks:
            raise RejectedReport(
                Rejection.FUTURE,
                f"rank {rank}: iteration {iteration} is more than {FAR_AHEAD} beyond {self.closed}",
            )
        self.closed = iteration - 1
        self._far.clear()
        self._open.clear()

    def _check_usual(self, rank: int, time_s: float) -> None:
        usual_s = self._usual_s[rank]
        if usual_s and not usual_s / ABSURD_FACTOR <= time_s <= usual_s * ABSURD_FACTOR:
            self._absurd[rank] += 1
            if self._absurd[rank] < ABSURD_IN_A_ROW:
                raise RejectedReport(Rejection.ABSURD, f"rank {rank}: own time {time_s:g} s a draw after {usual_s:g} s")
        self._absurd[rank] = 0
        self._usual_s[rank] = time_s

    def _begin(self, iteration: int) -> Gathering:
        if len(self._open) >= MOST_OPEN + 2 * (self._at_once - 1):
            del self._open[min(self._open, key=lambda number: (self._open[number].count, -number))]
        open_ = self._open[iteration] = Gathering(iteration, self._ranks, self._sensors)
        return open_

    def _say_together(self, rank: int, together: int) -> None:
        if together > 1:
            self._together[rank] = together
        else:
            self._together.pop(rank, None)

    @property
    def _at_once(self) -> int:
        return max(self._together.values(), default=1)

    def _close(self, newest: Gathering) -> list[Gathering]:
        """What `newest` closes: itself when complete; earlier ones when it follows them, or by majority."""
        complete = newest.count == self._ranks
        if not complete and len(self._open) == 1:
            return []
        more = self._at_once - 1
        follows = self.closed is not None and newest.iteration <= self.closed + FOLLOWS
        if not (complete or follows or 2 * newest.count > self._ranks):
            return []
        limit = newest.iteration + (1 if complete else -more)
        over = [self._open.pop(number) for number in sorted(self._open) if number < limit]
        before = self.closed
        for each in over:  # where groups of ranks overlap, each iteration counts once
            if before is not None:
                each.iterations = min(each.iterations, each.iteration - before)
            before = each.iteration
        if over:
            self.closed = over[-1].iteration
            for rank in [rank for rank in self._together if not over[-1].heard[rank]]:
                del self._together[rank]
        return over
