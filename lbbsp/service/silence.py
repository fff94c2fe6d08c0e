"""Who has not reported for too long, by the manager's clock, as arrays over ranks.

A rank that hangs makes all wait at the barrier, so silence alone accuses nobody: the ranks behind the newest
iteration are named, and where none is behind, the job as a whole rests (validation, a checkpoint). Seconds.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

AT_LEAST_S = 5.0
FORECASTS = 3.0


def limit_s(iteration_time_s: float) -> float:
    """Silence beyond this is flagged: 3 forecasts, at least 5 s (NaN forecast: 5 s)."""
    return float(np.fmax(FORECASTS * iteration_time_s, AT_LEAST_S))


@dataclass(frozen=True)
class Change:
    """What changed since the last look."""

    fell_silent: list[int]
    came_back: list[int]
    rests: bool
    """The whole job fell silent together, nobody behind."""


class Silence:
    """Last sign of life of each rank."""

    def __init__(self, ranks: int, now_s: float) -> None:
        self.heard_s = np.full(ranks, now_s)
        self.iteration = np.full(ranks, -1, dtype=np.int64)
        self.silent: npt.NDArray[np.bool_] = np.zeros(ranks, dtype=np.bool_)
        self.left: npt.NDArray[np.bool_] = np.zeros(ranks, dtype=np.bool_)
        self._resting = False

    def heard(self, rank: int, iteration: int, now_s: float) -> None:
        """A report of this rank came in."""
        self.heard_s[rank] = now_s
        if iteration > self.iteration[rank]:
            self.iteration[rank] = iteration

    def look(self, now_s: float, iteration_time_s: float) -> Change:
        """Flag and unflag; call about once a second."""
        overdue = (now_s - self.heard_s > limit_s(iteration_time_s)) & ~self.left
        behind = overdue & (self.iteration < self.iteration.max())
        resting = bool(overdue.any() and not behind.any() and (overdue | self.left).all())
        change = Change(
            fell_silent=np.flatnonzero(behind & ~self.silent).tolist(),
            came_back=np.flatnonzero(self.silent & ~overdue & ~self.left).tolist(),
            rests=resting and not self._resting,
        )
        self.silent = behind | (self.silent & overdue)
        self._resting = resting
        return change
