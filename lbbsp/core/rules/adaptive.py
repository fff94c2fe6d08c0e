"""The rule `adaptive`: fits each rank's time curve online and gives the sizes that end soonest by it.

Where all ranks end together no other plan is faster, whatever the curves: some rank would have as much or more.
So sizes that equalise fitted times at the sizes in use need no exploration for its own sake; each plan is also the
experiment that teaches most, since it moves the ranks whose times differ. Times in seconds, sizes in samples.
"""

import numpy as np

from lbbsp.core.accelerator import AcceleratorFit
from lbbsp.core.rules.base import Array, Bounds, IntArray
from lbbsp.core.sizing import allocate, fits


class Adaptive:
    """Sizes that minimise the largest expected time.

    Args:
        ranks: of the job.
        global_batch: X, in samples.
        threshold: least predicted gain for a change, as a share of the iteration time.
    """

    def __init__(self, ranks: int, global_batch: int, threshold: float = 0.003) -> None:
        self.fit = AcceleratorFit(ranks, global_batch / ranks)
        self._threshold = threshold
        self._sizes: IntArray | None = None

    def propose(self, samples: Array, time_s: Array, bounds: Bounds, iterations: int = 1) -> IntArray:
        """Learn from one observation, of however many iterations; the sizes to use next. See Rule."""
        self.fit.learn(samples, time_s)
        if self._sizes is None or fits(self._sizes, bounds):
            self._sizes = bounds.equal()
            if not self.fit.seen.any():
                return self._sizes
        elif not self.fit.seen.any():
            return self._sizes
        curves = self.fit.curves()
        sizes = allocate(curves, bounds)
        now_s, then_s = (float(np.max(curves.time_s(one))) for one in (self._sizes, sizes))
        if then_s < now_s * (1.0 - self._threshold):
            self._sizes = sizes
        return self._sizes
