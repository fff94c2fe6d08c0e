"""What all schemes with a barrier share: one iteration, everybody's gradient, one update, all start again.

A scheme says the sizes; this is no scheme itself. Over a parameter server gradients queue for its link and the
parameters leave to all; over a ring the all-reduce starts when the last worker is ready.
"""

from bench.schemes.deck import Share, joined
from bench.schemes.world import Task, World


class Barrier:
    """An iteration after the other; `sizes` and `_learn` are what schemes differ in."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._arrived: list[Task] = []
        self._start_s = 0.0

    def sizes(self) -> list[int]:
        """Samples of each worker in the iteration that starts now."""
        raise NotImplementedError

    def begin(self) -> None:
        """Start an iteration."""
        self._arrived, self._start_s = [], self.world.clock.now_s
        self._start(self.sizes())

    def _start(self, sizes: list[int]) -> None:
        for worker, size in enumerate(sizes):
            self.world.compute(worker, self.world.deck.draw(worker, size), self._ready)

    def _ready(self, task: Task) -> None:
        """A worker's gradient is ready: on its way to the server, or held for the ring."""
        if self.world.setup.wire.kind == "server":
            self.world.clock.at(self.world.server.push_s(), lambda: self._arrive(task))
        else:
            self._arrive(task)

    def _arrive(self, task: Task) -> None:
        self._arrived.append(task)
        if len(self._arrived) == self.world.setup.workers:
            self._reduce([task.share for task in self._arrived])

    def _reduce(self, shares: list[Share]) -> None:
        """All are there: update, send the parameters back, go on."""
        world = self.world
        ring = world.setup.wire.kind == "ring"
        world.clock.at(world.clock.now_s + (world.setup.wire.ring_s(world.setup.workers) if ring else 0.0),
                       lambda: self._update(joined(shares)))  # fmt: skip

    def _update(self, share: Share) -> None:
        world = self.world
        _, gradient = world.gradient(world.weights, share)
        world.update(gradient, share)
        self._next()

    def _next(self) -> None:
        """Parameters to everybody, then the next iteration."""
        world = self.world
        world.end_iteration()
        self._learn()
        wire = world.setup.wire
        back_s = wire.latency_s + world.setup.workers * wire.transfer_s if wire.kind == "server" else 0.0
        world.clock.at(world.clock.now_s + back_s, self.begin)

    def _learn(self) -> None:
        """Whatever a scheme takes from an iteration that ended; its tasks are in self._arrived."""
