"""The virtual clock: events in order of time, and of being asked for where times are equal.

Knows nothing of workers or training. Times in seconds since the start of the run.
"""

import heapq
import itertools
from collections.abc import Callable


class Event:
    """Something that will happen, unless it is cancelled."""

    __slots__ = ("action", "time_s")

    def __init__(self, time_s: float, action: Callable[[], None]) -> None:
        self.time_s = time_s
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """It will not happen; no harm where it already did."""
        self.action = None


class Clock:
    """Time that passes only from one event to the next."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Event]] = []
        self._order = itertools.count()

    def at(self, time_s: float, action: Callable[[], None]) -> Event:
        """Let `action` happen at a time.

        Raises:
            ValueError: the time is over.
        """
        if not time_s >= self.now_s:
            raise ValueError(f"an event at {time_s} s is wanted when it is already {self.now_s} s")
        event = Event(time_s, action)
        heapq.heappush(self._events, (time_s, next(self._order), event))
        return event

    def step(self) -> bool:
        """Let the next event happen. False where there is none."""
        while self._events:
            time_s, _, event = heapq.heappop(self._events)
            if event.action is None:
                continue
            self.now_s = time_s
            action, event.action = event.action, None
            action()
            return True
        return False
