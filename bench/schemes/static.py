"""Static split: shares follow speeds measured once, over the first iterations, and stay.

What people do by hand with mixed machines.
"""

import numpy as np

from bench.schemes.barrier import Barrier
from bench.schemes.world import World
from lbbsp.core.sizing import Bounds, Curves, allocate

PROFILED = 10
"""Iterations with equal shares, whose mean times decide the sizes."""


class Static(Barrier):
    """Equal shares at first, then those that would have ended together."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._sizes = np.array(world.setup.shares())
        self._times_s: list[list[float]] = []

    def sizes(self) -> list[int]:
        """Measured once."""
        return [int(size) for size in self._sizes]

    def _learn(self) -> None:
        if len(self._times_s) == PROFILED:
            return
        by_worker = sorted(self._arrived, key=lambda task: task.worker)
        self._times_s.append([task.end_s - task.start_s for task in by_worker])
        if len(self._times_s) == PROFILED:
            self._decide(np.array(self._times_s).mean(axis=0))

    def _decide(self, time_s: np.ndarray) -> None:
        none, workers = np.zeros(len(time_s)), len(time_s)
        total = self.world.setup.global_batch
        bounds = Bounds(total, np.ones(workers, dtype=np.int64), np.full(workers, total))
        self._sizes = allocate(Curves(none, none, time_s / self._sizes), bounds)
