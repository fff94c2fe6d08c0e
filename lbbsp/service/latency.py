"""How long decisions take: from the report that closes an iteration to its plan on the way. Seconds."""

from bisect import bisect_left

BOUNDS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.015, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Latency:
    """A histogram that never forgets: what Prometheus takes differences of."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """Decisions up to each bound, and beyond the last."""
        self.sum_s = 0.0

    def add(self, time_s: float) -> None:
        """One decision."""
        self.counts[bisect_left(BOUNDS_S, time_s)] += 1
        self.sum_s += time_s
