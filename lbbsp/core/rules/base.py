"""What every sizing rule is: sizes and own times of a closed iteration in, sizes of the next plan out.

Knows nothing of reports, predictors or the wire. Arrays have one entry per rank; sizes in samples, times in seconds.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from lbbsp.core.bounds import Bounds, IntArray

Array = npt.NDArray[np.float64]

__all__ = ["Array", "Bounds", "IntArray", "Rule", "within"]


class Rule(Protocol):
    """Decides sizes from what iterations showed; no clock, no randomness."""

    def propose(self, samples: Array, time_s: Array, bounds: Bounds, iterations: int = 1) -> IntArray:
        """Learn from what closed; the sizes to use next, int64 (ranks,), within the bounds.

        Args:
            samples: of each rank; NaN where it has no sound report.
            time_s: own time of each rank; NaN likewise.
            bounds: as they are now; they may change from call to call.
            iterations: that these are the means of, where a job rests.

        Raises:
            BoundsError: the bounds allow no plan.
        """


def within(sizes: IntArray, bounds: Bounds) -> IntArray:
    """The plan nearest to these sizes that the bounds allow: clipped, then evened out rank by rank."""
    unit = bounds.granularity
    least, most = bounds.units()
    units = np.clip(np.asarray(sizes) // unit, least, most)
    missing = bounds.global_batch // unit - int(units.sum())
    while missing:
        room = (most - units) if missing > 0 else (units - least)
        open_ = np.flatnonzero(room > 0)
        share = max(1, abs(missing) // len(open_))
        for rank in open_[np.argsort(-room[open_], kind="stable")]:
            moved = min(share, int(room[rank]), abs(missing))
            units[rank] += moved if missing > 0 else -moved
            missing -= moved if missing > 0 else -moved
            if not missing:
                break
    return np.asarray(units * unit, dtype=np.int64)
