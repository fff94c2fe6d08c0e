"""Own time: a worker's own work between collective waits, added up (rule 7 of the design).

A segment runs from the end of one wait to the start of the next. The time between a reduction and the next draw
(optimizer, logging) counts as own work unless it is far longer than usual: then it was a validation or a checkpoint,
and the usual length stands in. Stamps come from `Marks`, so that devices can time themselves. Seconds.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

OUTLIER_RATIO = 5.0
OUTLIER_SHARE = 0.2
REMEMBERED_TAILS = 31
TAILS_BETWEEN = 8
"""Once so many are remembered the median is taken anew after so many more."""


class Marks(Protocol):
    """A source of stamps: the host's clock or a device's events."""

    def stamp(self) -> Any:
        """Mark this moment."""

    def between(self, start: Any, end: Any) -> float | None:
        """Seconds from start to end; None while the device has not reached `end`."""


class HostMarks:
    """Stamps of the host's clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.stamp = clock

    def between(self, start: float, end: float) -> float | None:
        """Seconds from start to end."""
        return end - start


class Window:
    """The own work of one iteration: segments, and what stands in for work that was left out."""

    def __init__(self) -> None:
        self.segments: list[tuple[Any, Any]] = []
        self.stand_in_s = 0.0

    def own_time_s(self, marks: Marks) -> float | None:
        """The sum; None while a device is still busy with it."""
        total_s = self.stand_in_s
        for start, end in self.segments:
            span_s = marks.between(start, end)
            if span_s is None:
                return None
            total_s += span_s
        return total_s


class OwnTime:
    """Collects segments of own work; `stop` and `start` bracket each collective wait."""

    def __init__(self, marks: Marks, clock: Callable[[], float]) -> None:
        self.marks = marks
        self._clock = clock
        self._window = Window()
        self._since: Any = None
        self._tail_since_s: float | None = None
        self._before_tail = 0
        self._tails: deque[float] = deque(maxlen=REMEMBERED_TAILS)
        self._tails_since = 0
        self.usual_tail_s = 0.0
        """(Upper) median of the time from the end of a reduction to the next draw; 0 before any."""

    def start(self) -> None:
        """Own work begins: a wait has ended."""
        if self._since is None:
            self._since = self.marks.stamp()

    def stop(self, stamp: Any = None) -> None:
        """Own work ends: a wait begins, or began at an earlier stamp."""
        if self._since is not None:
            self._window.segments.append((self._since, self.marks.stamp() if stamp is None else stamp))
            self._since = None

    def start_tail(self) -> None:
        """A reduction has ended; what follows up to the next draw is the tail."""
        self._tail_since_s = self._clock()
        self._before_tail = len(self._window.segments)
        self.start()

    def end_tail(self, iteration_s: float, outside: bool = False) -> float:
        """A draw begins: close the tail, or replace it where it held work outside of training.

        Args:
            iteration_s: usual length of an iteration; a tail under a fifth of it is never replaced.
            outside: the caller knows that other work lay in the tail.

        Returns:
            How much longer than usual a tail was that was replaced.
        """
        if self._tail_since_s is None:
            return 0.0
        self.stop()
        tail_s = self._clock() - self._tail_since_s
        self._tail_since_s = None
        if outside or self._unusual(tail_s, iteration_s):
            del self._window.segments[self._before_tail :]
            self._window.stand_in_s += self.usual_tail_s
            return max(0.0, tail_s - self.usual_tail_s)
        self._tails.append(tail_s)
        self._tails_since += 1
        if len(self._tails) < REMEMBERED_TAILS or self._tails_since >= TAILS_BETWEEN:
            self._tails_since = 0
            self.usual_tail_s = sorted(self._tails)[len(self._tails) // 2]
        return 0.0

    def take(self) -> Window:
        """The finished window; a new one begins."""
        window, self._window = self._window, Window()
        return window

    def _unusual(self, tail_s: float, iteration_s: float) -> bool:
        if len(self._tails) < 3:
            return tail_s > max(OUTLIER_RATIO, 1.0) * max(iteration_s, 1e-3)
        return tail_s > OUTLIER_SHARE * iteration_s and tail_s > OUTLIER_RATIO * self.usual_tail_s
