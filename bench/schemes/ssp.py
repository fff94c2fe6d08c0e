"""Stale synchronous (Ho et al. 2013): as ASP, but nobody starts more than s pushes ahead of the slowest.

With s = 0 that is BSP, update by update.
"""

from bench.schemes.asp import Asp
from bench.schemes.world import World


class Ssp(Asp):
    """A worker that is too far ahead waits for the slowest."""

    def __init__(self, world: World, bound: int) -> None:
        super().__init__(world)
        self._bound = bound
        self._waiting: list[int] = []

    def _go_on(self, worker: int) -> None:
        self._waiting.append(worker)
        slowest = min(self.clocks)
        ready = [worker for worker in self._waiting if self.clocks[worker] - slowest <= self._bound]
        self._waiting = [worker for worker in self._waiting if worker not in ready]
        for worker in ready:
            self._pull(worker)
