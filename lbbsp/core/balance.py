"""The balanced sizes of a job: replaced only where others are predicted to be faster by enough.

Knows nothing of reports or predictors. Times in seconds, sizes in samples, speeds in samples/s.
"""

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from lbbsp.core.bounds import Bounds, IntArray
from lbbsp.core.rules.base import within
from lbbsp.core.sizing import Curves, allocate, fits

PROBE_AFTER = 50
"""Iterations without a speed after which a rank at size 0 gets the least size above it, to be seen again."""

RETURN_AT = 0.5
"""Where the best sizes promise less than so much of what a change must, over equal ones, sizes are equal again."""

UNREST_S = 1e-3
"""What an iteration costs more where sizes move: decisions and messages that a job of equal sizes leaves out (`python
bench/overhead.py`). A change away from equal sizes must promise so much more ..."""
LASTS = 0.02
"""... unless usual times promise enough: this is the share of an iteration's in them. And where ..."""
ONE_ALONE = 5.0
"""... one iteration alone promises less than so many times that beyond what a change must, it is not believed yet."""

Array = npt.NDArray[np.float64]


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
        self._usual_s: Array = np.zeros(bounds.world_size)
        self._promising = 0

    def update(self, curves: Curves, doubt: float, seen: npt.NDArray[np.bool_], iterations: int = 1) -> None:
        """Take the newest forecast curves.

        Args:
            curves: predicted own time of each rank against its size.
            doubt: share of the iteration time that noise alone can make other sizes look better by.
            seen: which ranks showed a speed in the newest iteration.
            iterations: that it is the mean of.
        """
        self._unseen = np.where(seen, 0, self._unseen + 1)
        if self._probe(curves):
            return
        asked = self._threshold + doubt
        best_s = curves.no_plan_before_s(self._bounds.global_batch)
        times_s = curves.time_s(self._equal)
        equal_s = float(times_s.max())
        promise = 1.0 - best_s / equal_s
        self._usual_s += (1.0 - (1.0 - LASTS) ** iterations) * (times_s - self._usual_s)
        self._promising = self._promising + iterations if promise >= asked else 0
        if promise < RETURN_AT * asked:
            self.sizes = self._equal
            return
        if np.array_equal(self.sizes, self._equal):
            slower = np.divide(self._usual_s, times_s, out=np.ones(len(times_s)), where=times_s > 0)
            asked += self._asked_more(curves.slowed(slower), promise - asked, UNREST_S / equal_s)
        enough_s = float(curves.time_s(self.sizes).max()) * (1.0 - asked)
        if best_s >= enough_s:
            return
        sizes = allocate(curves, self._bounds)
        if float(curves.time_s(sizes).max()) < enough_s:
            self.sizes = sizes

    def _asked_more(self, usual: Curves, beyond: float, unrest: float) -> float:
        """What equal sizes must be beaten by, more than others: infinitely, where one iteration alone promises little.

        Args:
            usual: the curves at usual times.
            beyond: what the best sizes promise more than others must.
            unrest: what other sizes cost; both as shares of an iteration.
        """
        best_s, equal_s = usual.no_plan_before_s(self._bounds.global_batch), float(usual.time_s(self._equal).max())
        if best_s <= equal_s * (1.0 - self._threshold):
            return 0.0
        return math.inf if self._promising < 2 and beyond < ONE_ALONE * unrest else unrest

    def rebound(self, bounds: Bounds) -> None:
        """Bounds have changed: sizes that break them give way."""
        self._bounds, self._equal = bounds, bounds.equal()
        if fits(self.sizes, bounds):
            self.sizes = within(self.sizes, bounds)

    def _probe(self, curves: Curves) -> bool:
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
