"""Backup workers (Chen et al. 2016): the server takes the first n - b gradients; the last b are interrupted.

Exactly b shares of each iteration are computed for nothing, and their samples wait for the next epoch. That the
late ones stop at once is the scheme's best case.
"""

from bench.schemes.barrier import Barrier
from bench.schemes.deck import joined
from bench.schemes.world import Task, World
from lbbsp.errors import ConfigError


class Backup(Barrier):
    """b workers too many, at a parameter server."""

    def __init__(self, world: World, backups: int) -> None:
        super().__init__(world)
        if not 0 <= backups < world.setup.workers:
            raise ConfigError(f"{backups} of {world.setup.workers} workers can't be backups: leave at least one")
        self._needed = world.setup.workers - backups
        self._tasks: list[Task] = []

    def sizes(self) -> list[int]:
        """The equal split."""
        return self.world.setup.shares()

    def _start(self, sizes: list[int]) -> None:
        world = self.world
        self._tasks = [world.compute(worker, world.deck.draw(worker, size), self._ready)
                       for worker, size in enumerate(sizes)]  # fmt: skip

    def _ready(self, task: Task) -> None:
        round_ = self._tasks
        self.world.clock.at(self.world.server.push_s(), lambda: self._take(task, round_))

    def _take(self, task: Task, round_: list[Task]) -> None:
        """A gradient came in; those of an iteration that is over came for nothing."""
        if round_ is not self._tasks or len(self._arrived) == self._needed:
            return
        self._arrived.append(task)
        if len(self._arrived) < self._needed:
            return
        for other in self._tasks:
            if other not in self._arrived:
                other.cancel()
                self.world.ledger.waste(other.share)
        self._update(joined([taken.share for taken in self._arrived]))
