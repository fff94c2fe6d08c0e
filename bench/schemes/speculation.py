"""Speculative execution: a task that lags behind is started a second time on a worker with nothing to do.

A copy starts when a task's progress is below a share of the mean progress of all tasks, on the least loaded worker
(idle, and for longest); the first result counts, the other is cancelled, so no sample counts twice. Every task has
at most one copy. That a copy finds its data at once is the scheme's best case.
"""

from functools import partial

from bench.schemes.barrier import Barrier
from bench.schemes.deck import Share
from bench.schemes.world import Task, World

BELOW = 0.75
"""Of the mean progress: below it a task is copied."""
CHECK_S = 0.010
"""Between two looks at everybody's progress."""


class Speculation(Barrier):
    """BSP with copies of tasks that lag behind."""

    def __init__(self, world: World, below: float = BELOW, check_s: float = CHECK_S) -> None:
        super().__init__(world)
        self.copies = 0
        """Started so far."""
        self._below, self._check_s = below, check_s
        self._attempts: list[list[Task]] = []
        self._results: list[Share | None] = []
        self._idle: list[int] = []

    def sizes(self) -> list[int]:
        """The equal split."""
        return self.world.setup.shares()

    def _start(self, sizes: list[int]) -> None:
        workers, self._idle = len(sizes), []
        self._attempts, self._results = [[] for _ in range(workers)], [None] * workers
        for worker, size in enumerate(sizes):
            self._attempt(worker, worker, self.world.deck.draw(worker, size))
        self._look_later()

    def _attempt(self, number: int, worker: int, share: Share) -> None:
        first = not self._attempts[number]
        task = self.world.compute(worker, share, lambda task: self._first_result(number, task), first=first)
        self._attempts[number].append(task)

    def _first_result(self, number: int, task: Task) -> None:
        """Of a task; its other attempt is cancelled, and both workers are free."""
        self._results[number] = task.share
        for other in self._attempts[number]:
            self._idle.append(other.worker)
            if other is not task:
                other.cancel()
                self.world.ledger.waste(other.share)
        self._ready(task)

    def _arrive(self, task: Task) -> None:
        self._arrived.append(task)
        if len(self._arrived) == self.world.setup.workers:
            self._reduce([share for share in self._results if share is not None])

    def _look_later(self) -> None:
        self.world.clock.at(self.world.clock.now_s + self._check_s, partial(self._look, self._attempts))

    def _look(self, round_: list[list[Task]]) -> None:
        """Copy what lags most, while there are idle workers; looks of an earlier iteration find it over."""
        if round_ is not self._attempts or all(self._results):
            return
        progress = [1.0 if result else max(task.progress() for task in attempts)
                    for result, attempts in zip(self._results, self._attempts, strict=True)]  # fmt: skip
        limit = self._below * sum(progress) / len(progress)
        lagging = [number for number, share in enumerate(progress)
                   if share < limit and len(self._attempts[number]) == 1]  # fmt: skip
        for number in sorted(lagging, key=lambda number: progress[number]):
            if self._idle:
                self.copies += 1
                self._attempt(number, self._idle.pop(0), self._attempts[number][0].share)
        self._look_later()
