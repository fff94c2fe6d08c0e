"""Consensus with dynamic backup workers (cb-DyBW: Xiong, Yan, Singh and Li 2021), or with full participation.

Every worker has a model of its own. In iteration k it makes a step with its own gradient, eta0 delta^k long, and
averages with the neighbours that are ready by the threshold theta(k), by Metropolis weights; the others are backup
workers. Threshold rule: along a path that connects all workers, an iteration ends as soon as one link not yet used
in this round is established (both its ends are ready); when all links were used, a new round starts. So each round
mixes everybody with everybody, and a straggler is waited for at most once or twice in it. A worker that is late
keeps its model; its gradient is dropped, and it starts again with the others (the paper's model, in which task times
are drawn anew each iteration), or with `late="keep"` it computes on and takes part in the iteration in which it is
ready: nothing wasted, and nothing stale, since its own model didn't move.
"""

from typing import Literal

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
    linked: Bools = (apart > 0) & (apart <= reach)
    return linked


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
        late: what becomes of work that isn't ready by the threshold.
        reach: neighbours on either side.
    """

    def __init__(
        self, world: World, full: bool = False, late: Literal["drop", "keep"] = "drop", reach: int = 2
    ) -> None:
        workers, batch = world.setup.workers, world.setup.global_batch
        if batch % workers:
            raise ConfigError(f"consensus wants equal shares: {batch} samples don't divide by {workers} workers")
        self.world, self._full, self._keep, self._size = (world, full, late == "keep", batch // workers)
        self.models: Floats = np.tile(world.weights, (workers, 1))
        self.participants: list[npt.NDArray[np.int64]] = []
        """p_j(k): neighbours that worker j averaged with, for each iteration."""
        self.ended_s: list[float] = []
        """When each iteration ended."""
        self._graph, self._threshold = ring_graph(workers, reach), Threshold(workers)
        self._computing: dict[int, Task] = {}
        self._ready: dict[int, Task] = {}
        self._exchanging = False

    def begin(self) -> None:
        """Everybody who has nothing under way starts, from its own model."""
        world, self._exchanging = self.world, False
        for worker in range(world.setup.workers):
            if worker not in self._computing and worker not in self._ready:
                share = world.deck.draw(worker, self._size)
                self._computing[worker] = world.compute(worker, share, self._finished)
        self._look()

    def _finished(self, task: Task) -> None:
        self._ready[task.worker] = self._computing.pop(task.worker)
        if not self._exchanging:
            self._look()

    def _look(self) -> None:
        """End the iteration where the threshold is reached."""
        ready = set(self._ready)
        everybody = len(ready) == self.world.setup.workers
        if everybody or (not self._full and self._threshold.reached(ready)):
            self._threshold.close(ready)
            self._end()

    def _end(self) -> None:
        """The workers that are ready make their step, then average with one another."""
        world, self._exchanging = self.world, True
        taken, self._ready = self._ready, {}
        if not self._keep:
            self._drop()
        here = np.isin(np.arange(world.setup.workers), list(taken))
        linked = self._graph & here[:, None] & here[None]
        self.participants.append(linked.sum(axis=1))
        exchange_s = world.setup.wire.exchange_s(int(linked.sum(axis=1).max()))
        world.clock.at(world.clock.now_s + exchange_s, lambda: self._mix(taken, linked))

    def _drop(self) -> None:
        for task in self._computing.values():
            task.cancel()
            self.world.ledger.waste(task.share)
        self._computing = {}

    def _mix(self, taken: dict[int, Task], linked: Bools) -> None:
        world, data = self.world, self.world.data
        workers = np.array(sorted(taken))
        rows = np.stack([taken[int(worker)].share.rows for worker in workers])
        _, gradients = world.model.gradients(self.models[workers], data.train_x[rows], data.train_y[rows])
        step_size = world.setup.rate * world.setup.decay**world.iterations
        self.models[workers] -= np.float32(step_size) * gradients
        self.models = (metropolis(linked) @ self.models).astype(np.float32)
        for task in taken.values():
            world.ledger.apply(task.share)
        world.weights = self.models.mean(axis=0)
        world.end_iteration()
        self.ended_s.append(world.clock.now_s)
        self.begin()
