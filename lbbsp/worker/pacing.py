"""When rank 0 broadcasts at the latest: at its draw or after its usual tail, plus a short adaptive grace.

Fresh plans pay, so rank 0 may wait a little for the manager; never more than 1 % of an iteration beyond the moment
when a draw wants the sizes, and not at all while the manager is away or keeps answering too late. Pure; seconds on
one monotonic clock.
"""

import math
from collections import deque

GRACE_SHARE = 0.01
GRACE_STEP_S = 0.0005
PATIENCE_S = 1.0
REMEMBERED = 32
TRUSTED = 12
"""So many plans in a row must have come before rank 0 counts on the next one."""
PATIENCE = 4
"""So many plans must be too late before rank 0 stops waiting for them."""


class Pacing:
    """Learns how late plans come and how much grace is worth giving."""

    def __init__(self) -> None:
        self.iteration_s = 0.0
        self.prompt = False
        """Whether none of the last plans failed to come."""
        self._reducing_s = 0.0
        self._needed: deque[float] = deque(maxlen=REMEMBERED)
        self._last_event_s: float | None = None
        self._newest_s = 0.0

    @property
    def longest_s(self) -> float:
        """The longer of the usual iteration and the newest."""
        return max(self.iteration_s, self._newest_s)

    @property
    def grace_s(self) -> float:
        """The grace to give now: what would have done for most recent plans, at most 1 % of an iteration."""
        limit = GRACE_SHARE * self.iteration_s
        if not self._needed:
            return limit
        useful = [late for late in self._needed if late <= limit]
        if not useful or 4 * len(useful) < len(self._needed):
            return 0.0 if len(self._needed) >= PATIENCE else limit
        return min(limit, 2.0 * max(0.0, max(useful)) + GRACE_STEP_S)

    def event(self, now_s: float, paused_s: float = 0.0) -> None:
        """The last gradient of a reduction is ready.

        Args:
            now_s: when.
            paused_s: of the time since the event before, pauses (a validation, a checkpoint): they say nothing of the
                pace.
        """
        if self._last_event_s is not None:
            self._newest_s = max(0.0, now_s - self._last_event_s - paused_s)
            self.iteration_s = _smooth(self.iteration_s, self._newest_s)
        self._last_event_s = now_s

    def reduced(self, now_s: float) -> None:
        """The reduction of the newest event has ended."""
        if self._last_event_s is not None:
            self._reducing_s = _smooth(self._reducing_s, now_s - self._last_event_s)

    def deadline_s(self, event_s: float, reduced_s: float | None, wanted_s: float | None, usual_tail_s: float) -> float:
        """The moment to send at the latest, whether a plan came or not."""
        if reduced_s is None:
            return event_s + max(PATIENCE_S, 4.0 * self._reducing_s)
        free_until_s = reduced_s + usual_tail_s
        if wanted_s is not None:
            free_until_s = min(free_until_s, max(wanted_s, reduced_s))
        return free_until_s + self.grace_s

    def arrived(self, late_s: float) -> None:
        """A plan came `late_s` after the moment when it was wanted (negative: before); inf if it never came."""
        self._needed.append(late_s)
        self.prompt = len(self._needed) >= TRUSTED and math.isfinite(max(self._needed))


def _smooth(old_s: float, new_s: float) -> float:
    """Running value that follows within some ten iterations and ignores single pauses."""
    if old_s <= 0.0:
        return new_s
    return old_s + 0.1 * (min(new_s, 3.0 * old_s) - old_s)
