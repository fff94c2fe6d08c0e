"""How much of the cores that this process may use lies idle, looked at every few seconds.

Knows nothing of a container's quota. Seconds.
"""

import os

import psutil

LOOK_EVERY_S = 5.0


class IdleCores:
    """Call it with the time; NaN until there is something to tell."""

    def __init__(self) -> None:
        self._idle = float("nan")
        self._at_s = float("-inf")
        self._idle_s: float | None = None

    def __call__(self, now_s: float) -> float:
        """Cores that were idle since the look before, as a number of whole ones."""
        passed_s = now_s - self._at_s
        if passed_s >= LOOK_EVERY_S:
            idle_s = _idle_s()
            if self._idle_s is not None and idle_s is not None:
                self._idle = max(0.0, idle_s - self._idle_s) / passed_s
            self._at_s, self._idle_s = now_s, idle_s
        return self._idle


def _idle_s() -> float | None:
    """Idle time of our cores together, since they were started; None where the system does not tell."""
    try:
        cores = psutil.cpu_times(percpu=True)
        ours = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(cores))
        return float(sum(cores[core].idle for core in ours))
    except (OSError, IndexError, AttributeError):
        return None
