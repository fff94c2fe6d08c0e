"""What a change of sizes costs where loader workers fetch ahead: what moves late is read in the training thread.

The more of an iteration ranks spend waiting for their loader, the dearer a moved sample: a job that is bound by its
loader then follows only changes that promise much. Pure; times in seconds.
"""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_PRICE = 0.15
"""Gain, as a share of the iteration, that a change must promise where ranks do nothing but wait for their loader."""
_SHARE = 0.1
"""Of the newest iteration in the usual share of waiting."""


class Late:
    """The share of own time that ranks wait for their loader, and the doubt that follows from it.

    Args:
        reads_ahead: iterations that loader workers fetch ahead; 0: nothing is read late.
    """

    def __init__(self, reads_ahead: int) -> None:
        self._ahead = reads_ahead > 0
        self._waiting = 0.0

    @property
    def doubt(self) -> float:
        """Gain that a change must promise on top of all else, as a share of the iteration."""
        return _PRICE * self._waiting

    def follow(self, input_s: Array, time_s: Array) -> None:
        """Take one iteration: (ranks,) each, a draw's wait for the loader and its own time; NaN = unknown."""
        known = np.isfinite(time_s)
        if self._ahead and known.any():
            newest = float(np.clip(input_s[known].sum() / time_s[known].sum(), 0.0, 1.0))
            self._waiting += _SHARE * (newest - self._waiting)
