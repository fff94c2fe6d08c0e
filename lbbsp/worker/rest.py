"""When a job rests: its sizes have long been nearly equal, so that nobody waits for plans, and most are not even sent.

Rank 0 alone decides, and says with each message how many reductions follow without one; one report tells of those
that are alike. A rest ends with its epoch, and lasts under two seconds at the pace before it, and no more than a share
of the calm before it, less what other sizes took back: so a first change that lasts is followed late by no more than
that share of the iterations before it. Pure. Seconds.
"""

from collections import deque

import numpy as np

from lbbsp.core.parts import WHOLE_PPM
from lbbsp.protocol import MOST_TOGETHER
from lbbsp.worker.vector import IntArray, Vector

CALM_AFTER = 16
"""Reductions with equal sizes after which a fresh plan is not worth a wait at each draw ..."""
NEAR = 0.1
SETTLED_AFTER = 50
"""... or with others that are equal but for so much of an equal size, once they have held for so many reductions ..."""
APART_COSTS = 10
"""... and where each with other sizes takes so many of them back, so that a moment's doubt is soon forgotten ..."""
CALM_A_REST = 12
"""... and so many of which give one to the rest after them ..."""
MOST_EQUAL = CALM_A_REST * MOST_TOGETHER
"""... and no more than these are remembered."""
REST_S, LONG_REST_S = 0.4, 1.6
"""Sizes may follow so much later, and reports be held back so long: at first, and ..."""
LONG_AFTER = 6
"""... after so many rests in a row in which no size has changed ..."""
LONGER = 1.25
"""... and no iteration before a message took so many times the longest ..."""
PACES = 16
"""... of those before so many earlier ones: then all should be known soon."""
NEVER = -1
"""`Vector.rest` of a message that neither opens a rest nor lets the next one open any."""


class Rests:
    """Rank 0's account of how long sizes have been equal, or nearly so.

    Args:
        equal: (ranks,) the split closest to equal.
    """

    def __init__(self, equal: IntArray) -> None:
        self._equal = self._usual = self._seen = equal
        self._held_for = 0
        self._equal_for = self._apart_for = self._since = 0
        self._still = False
        self._in_a_row = 0
        self._paces_s: deque[float] = deque(maxlen=PACES)

    @property
    def calm(self) -> bool:
        """Whether sizes have been equal, or nearly, for so long that nobody waits for plans."""
        return self._still and self._equal_for >= CALM_AFTER

    def reduction(self, drawn: bool) -> None:
        """A reduction; whether a draw lay between it and the one before."""
        self._apart_for = self._apart_for + 1 if drawn else 0
        self._since += 1

    def sent(self, vector: Vector) -> None:
        """These sizes are those of the newest message."""
        since, self._since = self._since, 0
        if vector.sizes is not self._seen and not np.array_equal(vector.sizes, self._seen):
            self._held_for = self._in_a_row = 0
            since = 1
        self._seen = vector.sizes
        self._held_for += since
        if self._held_for >= SETTLED_AFTER and self._near():
            self._usual = vector.sizes
        self._still = vector.beta_ppm == WHOLE_PPM and np.array_equal(vector.sizes, self._usual)
        count = self._equal_for + (since if self._still else -APART_COSTS * since)
        self._equal_for = min(max(0, count), MOST_EQUAL)

    def _near(self) -> bool:
        return bool((np.abs(self._seen - self._equal) <= NEAR * self._equal).all())

    def after(
        self, old: Vector, reductions_left: int, iteration_s: float, together: int, unanswered: bool = False
    ) -> int:
        """The rest that the message after `old` may open.

        A loop with several reductions to a draw has none: there the other ranks would have to wait for each message.

        Args:
            old: the message before.
            reductions_left: in the epoch, after the one that the message follows.
            iteration_s: the longest of late.
            together: reports that the manager takes at once; 1 where it knows of no rests.
            unanswered: the plan that follows the rest just over has not come: the next message shall have it.
        """
        if not self.calm or self._apart_for < CALM_AFTER or together <= 1 or not iteration_s > 0.0:
            self._in_a_row = 0
            self._paces_s.clear()
            return NEVER
        if old.rest == NEVER or (unanswered and old.rest > 0):
            return 0
        if self._paces_s and iteration_s > LONGER * max(self._paces_s):
            self._in_a_row = 0
        self._paces_s.append(iteration_s)
        self._in_a_row += 1
        longest_s = LONG_REST_S if self._in_a_row > LONG_AFTER else REST_S
        most = min(together, self._equal_for // CALM_A_REST, int(min(longest_s / iteration_s, MOST_TOGETHER)))
        return max(0, min(most - 1, reductions_left - 1))
