"""LB-BSP: the library's own BatchSizeManager decides every iteration's shares, with any of its predictors.

Reports and plans are as on a real job without lookahead: sizes of an iteration follow from all iterations before.
"""

import itertools

import numpy as np

from bench.schemes.barrier import Barrier
from bench.schemes.world import World
from lbbsp.core.manager import BatchSizeManager, JobSpec
from lbbsp.core.sizing import Bounds

SPARE_STEPS = 4
"""Steps of training that a predictor gets an iteration, about a millisecond each on a real manager."""


class Planner:
    """The manager of a simulated job, fed after each iteration."""

    def __init__(self, world: World, predictor: str) -> None:
        workers, total = world.setup.workers, world.setup.global_batch
        bounds = Bounds(total, np.ones(workers, dtype=np.int64), np.full(workers, total))
        self._world, self._iteration = world, 0
        self._manager = BatchSizeManager(JobSpec(bounds, sensors=("neighbours",)), predictor)
        self.sizes = np.array(world.setup.shares())

    def learn(self, samples: list[int], own_s: list[float]) -> None:
        """One iteration: samples and own time of each worker; a load reading is taken now."""
        now_s, longest_s = self._world.clock.now_s, max(own_s)
        made = None
        for worker, (size, time_s) in enumerate(zip(samples, own_s, strict=True)):
            reading = self._world.speeds.neighbours(worker, now_s)
            made = self._manager.report(
                worker, self._iteration, size, time_s, wait_s=longest_s - time_s, sensors=(reading,)
            )
        if made is None:
            raise RuntimeError(f"no plan after all reports of iteration {self._iteration}")
        steps = itertools.count()
        self._manager.train(lambda: next(steps) < SPARE_STEPS)
        self.sizes, self._iteration = made.sizes, self._iteration + 1


class Balanced(Barrier):
    """Shares by the manager's plan."""

    def __init__(self, world: World, predictor: str) -> None:
        super().__init__(world)
        self._planner = Planner(world, predictor)

    def sizes(self) -> list[int]:
        """The newest plan."""
        return [int(size) for size in self._planner.sizes]

    def _learn(self) -> None:
        tasks = sorted(self._arrived, key=lambda task: task.worker)
        self._planner.learn([len(task.share) for task in tasks], [task.end_s - task.start_s for task in tasks])
