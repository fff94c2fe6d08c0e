"""The rule `linear`, as LBB has it: each iteration a line t = a x + b through all a rank's times, by least squares.

While a rank has shown one size only its line goes through the origin. Times in seconds, sizes in samples.
"""

import numpy as np

from lbbsp.core.rules.base import Array, Bounds, IntArray
from lbbsp.core.sizing import Curves, allocate

_LEAST_SPREAD = 1e-9


class Linear:
    """Least squares over everything seen.

    Args:
        ranks: of the job.
        global_batch: X, in samples.
    """

    def __init__(self, ranks: int, global_batch: int) -> None:
        self._reference = global_batch / ranks
        self._sums: Array = np.zeros((5, ranks))

    def propose(self, samples: Array, time_s: Array, bounds: Bounds, iterations: int = 1) -> IntArray:
        """Learn from what closed; the sizes to use next. See Rule."""
        known = np.isfinite(samples) & np.isfinite(time_s)
        x, t = np.where(known, samples / self._reference, 0.0), np.where(known, time_s, 0.0)
        self._sums += iterations * np.stack([known.astype(np.float64), x, t, x * x, x * t])
        if not (self._sums[0] > 0).all() or not (self._sums[1] > 0).all():
            return bounds.equal()
        return allocate(self._lines(), bounds)

    def _lines(self) -> Curves:
        n, x, t, xx, xt = self._sums
        spread = n * xx - x * x
        steep = np.where(spread > _LEAST_SPREAD, (n * xt - x * t) / np.maximum(spread, _LEAST_SPREAD), 0.0)
        sound = (steep > 0) & (t - steep * x >= 0)
        slope = np.where(sound, steep, xt / np.maximum(xx, _LEAST_SPREAD))
        offset = np.where(sound, (t - steep * x) / n, 0.0)
        return Curves(np.zeros(len(n)), offset, slope / self._reference)
