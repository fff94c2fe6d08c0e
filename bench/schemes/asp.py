"""Asynchronous: no barrier; each worker's gradient changes the server's parameters as it comes.

One iteration, for comparison, is as many pushes as there are workers. A gradient is applied with the share of the
step that its samples have in a global batch, so that the same samples move the model as far as under BSP.
"""

from bench.schemes.model import Floats
from bench.schemes.world import Task, World


class Asp:
    """Pull, compute, push, again."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clocks = [0] * world.setup.workers
        """Pushes of each worker."""
        self.most_ahead = 0
        """Largest number of pushes by which a worker that starts was ahead of the slowest."""
        self._shares = world.setup.shares()

    def begin(self) -> None:
        """Everybody has the first parameters."""
        for worker in range(self.world.setup.workers):
            self._compute(worker, self.world.weights)

    def _pull(self, worker: int) -> None:
        """Parameters as they are when they leave the server."""
        world = self.world
        arrive_s = world.server.pull_s()
        leave_s = arrive_s - world.setup.wire.latency_s
        world.clock.at(leave_s, lambda: self._sent(worker, world.weights, arrive_s))

    def _sent(self, worker: int, weights: Floats, arrive_s: float) -> None:
        self.world.clock.at(arrive_s, lambda: self._compute(worker, weights))

    def _compute(self, worker: int, weights: Floats) -> None:
        self.most_ahead = max(self.most_ahead, self.clocks[worker] - min(self.clocks))
        share = self.world.deck.draw(worker, self._shares[worker])
        self.world.compute(worker, share, lambda task: self._ready(task, weights))

    def _ready(self, task: Task, weights: Floats) -> None:
        self.world.clock.at(self.world.server.push_s(), lambda: self._arrive(task, weights))

    def _arrive(self, task: Task, weights: Floats) -> None:
        world = self.world
        _, gradient = world.gradient(weights, task.share)
        world.update(gradient, task.share, scale=len(task.share) / world.setup.global_batch)
        self.clocks[task.worker] += 1
        if sum(self.clocks) % world.setup.workers == 0:
            world.end_iteration()
        self._go_on(task.worker)

    def _go_on(self, worker: int) -> None:
        self._pull(worker)
