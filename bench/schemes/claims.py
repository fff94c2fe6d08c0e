"""Claims: each worker computes the planned part of its share, then claims micro-batches of the rest.

The plan is LB-BSP's; the part of it that is fixed is what a worker that slows down as lately seen can still do in
time: with steady workers nearly all. Chunks are factored (Hummel,
Schonberg and Flynn 1992; weighted: Hummel et al. 1996): each worker's next one is half its fair part of what is left.
"""

from collections import deque
from functools import partial

import numpy as np

from bench.schemes.balanced import Planner
from bench.schemes.barrier import Barrier
from bench.schemes.deck import Share
from bench.schemes.world import Task, World

CLAIM_S, SLOW_CLAIM_S, SLOW_SHARE = 0.0001, 0.0025, 0.01
"""Measured on TCPStore.add: the median, and p99 with a contended core."""
LEAST_CHUNK = 2
FIXED_LEAST = 0.3
"""Share of the plan that is always fixed."""
WORTH = 1.1
"""Where workers slow down less than this, chunks cost more than they save: the whole plan is fixed."""
RECENT, COVERED = 50, 0.9
"""The fixed part would have been in time, with the worker that slowed down most, in 90 % of the last 50 iterations."""


class Claims(Barrier):
    """Planned parts, then claims until the iteration's samples are taken."""

    def __init__(self, world: World, predictor: str = "last") -> None:
        super().__init__(world)
        self._planner = Planner(world, predictor)
        self._rng = np.random.default_rng([world.setup.seed, 31])
        self._speed = np.ones(world.setup.workers)
        self._slowed: deque[float] = deque(maxlen=RECENT)
        self._left = self._iteration = 0
        self._done: list[list[Task]] = []

    def begin(self) -> None:
        """Fix the planned parts; the rest is up for claims."""
        self._arrived = []
        self._done = [[] for _ in range(self.world.setup.workers)]
        fixed = self._fixed_share()
        sizes = [max(1, int(fixed * size)) for size in self._planner.sizes]
        self._left = self.world.setup.global_batch - sum(sizes)
        self._start(sizes)

    def _fixed_share(self) -> float:
        slower = float(np.quantile(self._slowed, COVERED)) if self._slowed else np.inf
        return 1.0 if slower < WORTH else max(FIXED_LEAST, 1.0 / slower)

    def _ready(self, task: Task) -> None:
        """A chunk is done: claim the next, or go to the barrier."""
        worker = task.worker
        self._done[worker].append(task)
        if not self._left:
            super()._ready(task)
            return
        world = self.world
        fair = self._left * self._speed[worker] / self._speed.sum()
        size = min(self._left, max(LEAST_CHUNK, round(fair / 2)))
        self._left -= size
        share = world.deck.draw(worker, size)
        wait_s = SLOW_CLAIM_S if self._rng.random() < SLOW_SHARE else CLAIM_S
        world.clock.at(world.clock.now_s + wait_s, partial(self._chunk, worker, share))

    def _chunk(self, worker: int, share: Share) -> None:
        self.world.compute(worker, share, self._ready, first=False)

    def _reduce(self, shares: list[Share]) -> None:
        super()._reduce([task.share for tasks in self._done for task in tasks])

    def _learn(self) -> None:
        samples = [sum(len(task.share) for task in tasks) for tasks in self._done]
        own_s = [sum(task.end_s - task.start_s for task in tasks) for tasks in self._done]
        speed = np.array(samples) / np.array(own_s)
        if self._iteration:
            self._slowed.append(float((self._speed / speed).max()))
        self._speed, self._iteration = speed, self._iteration + 1
        self._planner.learn(samples, own_s)
