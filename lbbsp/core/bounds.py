"""What sizes a job allows: global batch, minimum and maximum of each rank, granularity; and the equal split.

Knows nothing of speeds. Arrays have one entry per rank; all figures in samples.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lbbsp.errors import BoundsError

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Bounds:
    """Sizes x_i with sum x_i = global_batch, min_i <= x_i <= max_i, x_i a multiple of granularity."""

    global_batch: int
    min_samples: IntArray
    max_samples: IntArray
    granularity: int = 1

    def __post_init__(self) -> None:
        for name in ("min_samples", "max_samples"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.int64))

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return len(self.min_samples)

    def check(self) -> None:
        """Return where some plan exists.

        Raises:
            BoundsError: none does; names what excludes it and what would work.
        """
        if problem := self._malformed() or self._impossible():
            raise BoundsError(problem)

    def possible(self) -> bool:
        """Whether some plan exists."""
        return not self._malformed() and self._works(self.granularity)

    def units(self) -> tuple[IntArray, IntArray]:
        """Least and most of each rank in units of the granularity.

        Raises:
            BoundsError: no plan exists.
        """
        if self.min_samples.shape != self.max_samples.shape or not self._works(self.granularity):
            self.check()
        least, most = self._units(self.granularity)
        return least, most

    def equal(self) -> IntArray:
        """The split closest to equal, int64 (ranks,); what doesn't divide goes to the first ranks.

        Raises:
            BoundsError: no plan exists.
        """
        least, most = self.units()
        total = self.global_batch // self.granularity
        low, high = 0, int(most.max(initial=0))
        while low < high:
            level = (low + high + 1) // 2
            low, high = (level, high) if int(np.clip(level, least, most).sum()) <= total else (low, level - 1)
        sizes = np.clip(low, least, most)
        open_ranks = np.flatnonzero((sizes == low) & (sizes < most))
        sizes[open_ranks[: total - int(sizes.sum())]] += 1
        return np.asarray(sizes * self.granularity, dtype=np.int64)

    def _units(self, granularity: int) -> tuple[IntArray, IntArray]:
        return -(-self.min_samples // granularity), self.max_samples // granularity

    def _malformed(self) -> str | None:
        if self.min_samples.ndim != 1 or self.min_samples.shape != self.max_samples.shape or not self.world_size:
            return (
                "bounds need one minimum and one maximum for each rank, got shapes "
                f"{self.min_samples.shape} and {self.max_samples.shape}"
            )
        if self.global_batch < 1 or self.granularity < 1:
            return f"global batch and granularity must be at least 1, got {self.global_batch} and {self.granularity}"
        wrong = (self.min_samples < 0) | (self.min_samples > self.max_samples)
        if wrong.any():
            rank = int(np.argmax(wrong))
            return (
                f"rank {rank} has minimum {self.min_samples[rank]} and maximum {self.max_samples[rank]}: "
                "use 0 <= minimum <= maximum, in samples"
            )
        return None

    def _impossible(self) -> str | None:
        lowest, highest = int(self.min_samples.sum()), int(self.max_samples.sum())
        if lowest > self.global_batch:
            return (
                f"the minima of the {self.world_size} ranks add up to {lowest}, above the global batch "
                f"{self.global_batch}: use a global batch of at least {lowest}, lower minima or fewer ranks"
            )
        if highest < self.global_batch:
            return (
                f"the maxima of the {self.world_size} ranks add up to {highest}, below the global batch "
                f"{self.global_batch}: use a global batch of at most {highest}, higher maxima or more ranks"
            )
        if self._works(self.granularity):
            return None
        return (
            f"global batch {self.global_batch} cannot be shared among {self.world_size} ranks in multiples "
            f"of {self.granularity} within their bounds: {self._granularity_hint()}"
        )

    def _works(self, granularity: int) -> bool:
        if self.global_batch % granularity:
            return False
        return _possible(*self._units(granularity), self.global_batch // granularity)

    def _granularity_hint(self) -> str:
        """The largest granularity below the one asked for that works; 1 always does here."""
        small = [d for d in range(1, math.isqrt(self.global_batch) + 1) if self.global_batch % d == 0]
        divisors = sorted({*small, *(self.global_batch // d for d in small)}, reverse=True)
        best = next((d for d in divisors if d < self.granularity and self._works(d)), 1)
        return f"use a granularity of {best}"


def _possible(least: IntArray, most: IntArray, total: int) -> bool:
    return bool(((least >= 0) & (least <= most)).all()) and int(least.sum()) <= total <= int(most.sum())
