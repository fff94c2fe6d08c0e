"""Consensus with dynamic backup workers (cb-DyBW: Xiong, Yan, Singh and Li 2021), or with full participation.

Every worker has a model of its own. In iteration k it makes a step with its own gradient, eta0 delta^k long, and
averages with the neighbours that are ready by the threshold theta(k), by Metropolis weights; the others are backup
workers. Threshold rule: along a path that connects all workers, an iteration ends as soon as one link not yet used
in this round is established (both its ends are ready); when all links were used, a new round starts. So each round
mixes everybody with everybody, and a straggler is waited for at most once or twice in it. A worker that is late
drops its gradient and keeps its model.
"""

import numpy as np
import numpy.typing as npt

from bench.schemes.model import Floats
from bench.schemes.world import Task, World
from lbbsp.errors import ConfigError

Bools = npt.NDArray[np.bool_]


def ring_graph(workers: int, reach: int = 2) -> Bools:
    """Who is whose neighbour: those up to `reach` places away on a ring; symmetric, (workers, workers)."""
    apart = np.abs(np.arange(workers)[:, None] - np.arange(workers)[None])
    apart = np.minimum(apart, workers - apart)
    return (apart > 0) & (apart <= reach)


def metropolis(linked: Bools) -> npt.NDArray[np.float64]:
    """Doubly stochastic weights: 1 / (1 + larger number of links of both ends); the rest stays with the worker."""
    links = linked.sum(axis=1)
    weights = np.where(linked, 1.0 / (1.0 + np.maximum(links[:, None], links[None])), 0.0)
    np.fill_diagonal(weights, 1.0 - weights.sum(axis=1))
    return weights


class Threshold:
    """When an iteration ends: at the first link of the path, not yet used in this round, with both ends ready."""

    def __init__(self, workers: int) -> None:
        self._path = [(worker, worker + 1) for worker in range(workers - 1)]
        self._open = set(self._path)

    def reached(self, ready: set[int]) -> bool:
        """Whether these workers establish a link that was still missing. One worker alone has none to wait for."""
        return not self._path or any(a in ready and b in ready for a, b in self._open)

    def close(self, ready: set[int]) -> None:
        """The iteration ended with these: their links are used."""
        self._open -= {link for link in self._open if link[0] in ready and link[1] in ready}
        if not self._open:
            self._open = set(self._path)


class Dybw:
    """Consensus on a ring of neighbours.

    Args:
        world: of the run.
        full: wait for everybody, the baseline.
        reach: neighbours on either side.
    """

    def __init__(self, world: World, full: bool = False, reach: int = 2) -> None:
        workers, batch = world.setup.workers, world.setup.global_batch
        if batch % workers:
            raise ConfigError(f"consensus wants equal shares: {batch} samples don't divide by {workers} workers")
        self.world, self._full, self._size = world, full, batch // workers
        self.models: Floats = np.tile(world.weights, (workers, 1))
        self.participants: list[npt.NDArray[np.int64]] = []
        """p_j(k): neighbours that worker j averaged with, for each iteration."""
        self._graph, self._threshold = ring_graph(workers, reach), Threshold(workers)
        self._tasks: list[Task] = []
        self._ready_tasks: dict[int, Task] = {}

    def begin(self) -> None:
        """Everybody computes, from its own model."""
        world, self._ready_tasks = self.world, {}
        self._tasks = [world.compute(worker, world.deck.draw(worker, self._size), self._ready)
                       for worker in range(world.setup.workers)]  # fmt: skip

    def _ready(self, task: Task) -> None:
        self._ready_tasks[task.worker] = task
        ready = set(self._ready_tasks)
        everybody = len(ready) == self.world.setup.workers
        if everybody or (not self._full and self._threshold.reached(ready)):
            self._threshold.close(ready)
            self._end()

    def _end(self) -> None:
        """Threshold reached: who is late drops its work; the others step, then average."""
        world = self.world
        ready = np.array(sorted(self._ready_tasks))
        for task in self._tasks:
            if task.worker not in self._ready_tasks:
                task.cancel()
                world.ledger.waste(task.share)
        linked = self._graph.copy()
        late = np.setdiff1d(np.arange(world.setup.workers), ready)
        linked[late], linked[:, late] = False, False
        self.participants.append(linked.sum(axis=1))
        exchange_s = world.setup.wire.exchange_s(int(linked.sum(axis=1).max()))
        world.clock.at(world.clock.now_s + exchange_s, lambda: self._mix(ready, linked))

    def _mix(self, ready: npt.NDArray[np.int64], linked: Bools) -> None:
        world, data = self.world, self.world.data
        rows = np.stack([self._ready_tasks[int(worker)].share.rows for worker in ready])
        _, gradients = world.model.gradients(self.models[ready], data.train_x[rows], data.train_y[rows])
        step_size = world.setup.rate * world.setup.decay**world.iterations
        self.models[ready] -= np.float32(step_size) * gradients
        self.models = (metropolis(linked) @ self.models).astype(np.float32)
        for worker in ready:
            world.ledger.apply(self._ready_tasks[int(worker)].share)
        world.weights = self.models.mean(axis=0)
        world.end_iteration()
        self.begin()
