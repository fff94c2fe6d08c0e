"""The balanced sizes of a job: replaced only where others are predicted to be faster by enough.

Knows nothing of reports or predictors. Times in seconds, sizes in samples, speeds in samples/s.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from lbbsp.core.bounds import Bounds, IntArray
from lbbsp.core.rules.base import within
from lbbsp.core.sizing import TimeCurves, allocate, fits

PROBE_AFTER = 50
"""Iterations without a speed after which a rank at size 0 gets the least size above it, to be seen again."""

RETURN_AT = 0.5
"""Where the best sizes promise less than so much of what a change must, over equal ones, sizes are equal again."""


class Balance:
    """Holds the balanced sizes and decides when they change.

    Args:
        bounds: what sizes the job allows; a plan exists.
        threshold: least predicted gain for a change, as a share of the iteration time.
    """

    def __init__(self, bounds: Bounds, threshold: float) -> None:
        self.sizes: IntArray = bounds.equal()
        self._equal = self.sizes
        self._bounds, self._threshold = bounds, threshold
        self._unseen = np.zeros(bounds.world_size, dtype=np.int64)

    def update(self, curves: TimeCurves, doubt: float, seen: npt.NDArray[np.bool_]) -> None:
        """Take the newest forecast curves.

        Args:
            curves: predicted own time of each rank against its size.
            doubt: share of the iteration time that noise alone can make other sizes look better by.
            seen: which ranks showed a speed in the newest iteration.
        """
        self._unseen = np.where(seen, 0, self._unseen + 1)
        if self._probe(curves):
            return
        asked = self._threshold + doubt
        best_s = curves.no_plan_before_s(self._bounds.global_batch)
        if best_s > float(curves.time_s(self._equal).max()) * (1.0 - RETURN_AT * asked):
            self.sizes = self._equal
            return
        enough_s = float(curves.time_s(self.sizes).max()) * (1.0 - asked)
        if best_s >= enough_s:
            return
        sizes = allocate(curves, self._bounds)
        if float(curves.time_s(sizes).max()) < enough_s:
            self.sizes = sizes

    def rebound(self, bounds: Bounds) -> None:
        """Bounds have changed: sizes that break them give way."""
        self._bounds, self._equal = bounds, bounds.equal()
        if fits(self.sizes, bounds):
            self.sizes = within(self.sizes, bounds)

    def _probe(self, curves: TimeCurves) -> bool:
        """A rank without samples shows no speed, so it could never come back by itself."""
        unit = self._bounds.granularity
        lost = (self.sizes == 0) & (self._unseen >= PROBE_AFTER) & (self._bounds.max_samples >= unit)
        if not lost.any():
            return False
        self._unseen[lost] = 0
        raised = replace(self._bounds, min_samples=np.where(lost, unit, self._bounds.min_samples))
        if not raised.possible():
            return False
        self.sizes = allocate(curves, raised)
        return True
