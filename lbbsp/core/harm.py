"""Do no harm: did the equal split win lately, or lose next to nothing? Then the job returns to it until balancing wins.

Knows nothing of how sizes are found. It compares the own times of past iterations under two sets of sizes: balanced
ones and equal ones, of which one was real and the other follows from the fitted curves. Times in seconds.
"""

from collections import deque
from collections.abc import Collection
from statistics import median

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

WINDOW = 50
"""Iterations that are judged together."""
_LOSS = 0.01
"""Balanced sizes may have cost so much of an equal iteration, on average over the window, before they end ..."""
_GAIN = 0.02
"""... and must have won so much before they come back: a margin against flapping."""
_MOST_GAIN = 0.16
"""Each return to equal sizes after a loss doubles what is asked of the next try, up to this ..."""
_WORTH_IT = 0.005
"""What balanced sizes must have saved, on average where they were not equal, to be worth their changes ..."""
_APART = 10
"""... once they were so in so many iterations of a full window."""
_LONGEST = 4.0
"""No iteration counts for more than so many usual ones of the window."""
_FORGIVE = 0.5 ** (1 / 200)
"""... and each iteration without one takes some of it back: half in 200."""


class DoNoHarm:
    """Watches the last WINDOW iterations; an early large loss counts before the window is full."""

    def __init__(self) -> None:
        self.balanced = True
        """Whether balanced sizes are in force; equal ones are otherwise."""
        self.switches = 0
        self._asked = _GAIN
        self._window: deque[tuple[float, float]] = deque(maxlen=WINDOW)

    def judge(self, balanced_s: Array, equal_s: Array, iterations: int = 1) -> bool:
        """Add one iteration, or so many alike: own times, (ranks,), NaN = unknown, under both.

        Returns:
            True when the verdict changed.
        """
        if not (np.isfinite(balanced_s).any() and np.isfinite(equal_s).any()):
            return False
        self._window.extend(self._tamed(float(np.nanmax(balanced_s)), float(np.nanmax(equal_s)), iterations))
        self._asked = max(_GAIN, self._asked * _FORGIVE**iterations)
        share = self.saved_share() * len(self._window) / WINDOW
        lost = self.balanced and share <= -_LOSS
        if not (lost or (self._idle() if self.balanced else share > self._asked)):
            return False
        self.balanced = not self.balanced
        if lost:
            self._asked = min(2.0 * self._asked, _MOST_GAIN)
        self.switches += 1
        return True

    def _idle(self) -> bool:
        """Balanced sizes were at work, and it came to nothing."""
        apart = [(balanced_s, equal_s) for balanced_s, equal_s in self._window if balanced_s != equal_s]
        return len(self._window) == WINDOW and len(apart) >= _APART and _saved(apart) < _WORTH_IT

    def _tamed(self, balanced_s: float, equal_s: float, iterations: int) -> list[tuple[float, float]]:
        """What they count as: one iteration that was far longer than usual tells no more than a few usual ones.

        Where it may have made the mean of several what it is, these count as one.
        """
        if not self._window:
            return [(balanced_s, equal_s)] * iterations
        usual_s, longest_s = median(equal for _, equal in self._window), max(balanced_s, equal_s)
        share = min(1.0, _LONGEST * usual_s / longest_s)
        one_made_it = longest_s > usual_s * (_LONGEST + iterations - 1) / iterations
        return [(share * balanced_s, share * equal_s)] * (1 if one_made_it else iterations)

    def saved_share(self) -> float:
        """What balanced sizes saved, or would have, of the time of equal ones; below 0 for a loss."""
        return _saved(self._window)


def _saved(times_s: Collection[tuple[float, float]]) -> float:
    balanced_s, equal_s = (sum(column) for column in zip(*times_s, strict=True)) if times_s else (0.0, 0.0)
    return 1.0 - balanced_s / equal_s if equal_s else 0.0
