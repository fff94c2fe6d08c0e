"""A cursor whose draws are planned parts and a pool: loader workers fetch the parts ahead, claims take the pool.

The parts follow the vector's sizes and planned share, alike on all ranks; what they leave of the ranks' homes, in
order of rank, is the pool. Pure; positions and sizes in samples.
"""

from dataclasses import dataclass, replace

from lbbsp.core.parts import WHOLE_PPM, fitting, grain, planned_parts
from lbbsp.worker.chunked import Ahead, ChunkedCursor, Piece, Task, found
from lbbsp.worker.claiming import Chunking
from lbbsp.worker.cursor import Epoch, Part
from lbbsp.worker.homes import Interval, left_portions, portions
from lbbsp.worker.vector import IntArray, Vector

USUAL_CHUNKS = 32
"""Where the manager says nothing, a rank claims at least its share over this at once."""


@dataclass(frozen=True)
class Cutting:
    """What the job may work at once."""

    unit: int = 1
    """Samples: parts and chunks are multiples of it."""
    most: int = 2**31 - 1
    """Samples that fit this rank's memory."""
    menu: bool = False
    """Few sizes, for compiled shapes."""


class PoolCursor(ChunkedCursor):
    """One iterator over an epoch on one rank, a part of each draw of which is claimed."""

    def __init__(self, epoch: Epoch, rank: int, ahead: Ahead, start: Vector, first_draw: int, cutting: Cutting) -> None:
        super().__init__(epoch, rank, ahead, start, first_draw)
        self._cutting = cutting
        self.reduced = first_draw
        """Draws whose gradients were reduced, and those before this iterator's first."""

    @property
    def claims(self) -> bool:
        """Whether parts of the newest draw are claimed; the same on all ranks."""
        return self.in_force.beta_ppm < WHOLE_PPM

    def part(self) -> Part:
        """The planned part of the newest draw."""
        parts = self._planned(self.newest, self.in_force)
        return replace(super().part(), samples=int(parts[self._rank]))

    def planned(self) -> list[Interval]:
        """Positions of the planned part."""
        return self._intervals(self.newest, self.in_force)

    def chunking(self) -> Chunking:
        """How this rank cuts the pool of the newest draw."""
        sizes = self._scaled(self.newest, self.in_force.sizes)
        total, ranks = int(sizes.sum()), len(sizes)
        unit = self._unit(sizes, self.in_force)
        equal = self.in_force.chunk or total / ranks / USUAL_CHUNKS
        share = max(float(sizes[self._rank]), 1.0) / max(total, 1)
        return Chunking(
            units=self._pool_samples() // unit,
            ranks=ranks,
            share=share,
            least=max(1, round(equal * share * ranks / unit)),
            most=max(1, self._cutting.most // unit),
            menu=True,
        )

    def claimed(self, first: int, end: int) -> list[Interval]:
        """Positions of these units of the newest draw's pool; the last unit is longer where units don't divide it."""
        sizes = self._scaled(self.newest, self.in_force.sizes)
        unit, pool = self._unit(sizes, self.in_force), self._pool_samples()
        low, high = first * unit, pool if end >= pool // unit else end * unit
        base = self.newest * self.epoch.global_batch
        homes = self._homes_of(self.newest)
        found_ = left_portions(homes, self._planned(self.newest, self.in_force), low, high)
        return [(base + start, base + stop) for start, stop in found_]

    def pieces_of(self, intervals: list[Interval], tasks: list[Task]) -> list[Piece]:
        """Where the samples of these positions are, among the tasks of the newest draw."""
        pieces = [piece for interval in intervals for piece in found(interval, tasks)]
        self.fetched_late += sum(
            stop - start for piece in pieces if piece.task is None for start, stop in [piece.interval]
        )
        return pieces

    def forget_homes(self) -> None:
        """The newest draw is over."""
        for old in [draw for draw in self._homes if draw <= self.newest]:
            del self._homes[old]

    def _intervals(self, draw: int, vector: Vector) -> list[Interval]:
        base = draw * self.epoch.global_batch
        mine = portions(self._homes_of(draw), self._planned(draw, vector), self._rank)
        return [(base + start, base + stop) for start, stop in mine]

    def _planned(self, draw: int, vector: Vector) -> IntArray:
        sizes = self._scaled(draw, vector.sizes)
        return planned_parts(sizes, vector.beta_ppm, self._unit(sizes, vector), self._cutting.menu)

    def _unit(self, sizes: IntArray, vector: Vector) -> int:
        """Samples: coarse enough that few sizes come up, since libraries prepare anew for each (oneDNN takes 2 ms)."""
        total, ranks = int(sizes.sum()), len(sizes)
        return fitting(grain(self._cutting.unit, min(vector.chunk, total // (4 * ranks))), total, ranks)

    def _homes_of(self, draw: int) -> IntArray:
        return self._scaled(draw, self._homes.get(draw, self._start.homes))

    def _pool_samples(self) -> int:
        sizes = self._scaled(self.newest, self.in_force.sizes)
        return int(sizes.sum() - self._planned(self.newest, self.in_force).sum())
