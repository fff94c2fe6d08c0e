"""Which positions of an epoch's order a rank takes, draw by draw, under changing sizes (rules 2 and 5 of the design).

Draw k of an epoch takes positions [k X, k X + X) of one order that all ranks share; each rank the slice that the
vector in force gives it. Loaders may read ahead: batch j follows the vector in force at draw j - L, the first L
batches the one in force at the start. Pure; sizes and positions in samples.
"""

from dataclasses import dataclass
from functools import cached_property

from lbbsp.core.sizing import short_slices
from lbbsp.worker.vector import IntArray, Place, Vector


@dataclass(frozen=True)
class Epoch:
    """One pass over the data, alike on all ranks."""

    key: int
    """What names it: the sampler's epoch, or the reductions before it."""
    order: IntArray
    """(samples,) dataset indices in the order in which iterations take them."""
    order_hash: int
    global_batch: int
    drop_last: bool = False

    @cached_property
    def draws(self) -> int:
        """Iterations in the epoch."""
        full, rest = divmod(len(self.order), self.global_batch)
        return full + (1 if rest and not self.drop_last else 0)


@dataclass(frozen=True)
class Part:
    """What a rank takes in one draw."""

    draw: int
    start: int
    """First position in the order."""
    samples: int
    global_samples: int
    """Samples of all ranks in this draw: X, fewer in the short last one."""
    based_on_iteration: int = -1


class Cursor:
    """One iterator over an epoch on one rank: `at_draw` in the training thread, `next_part` as the loader reads."""

    def __init__(self, epoch: Epoch, rank: int, lookahead: int, start: Vector, first_draw: int = 0) -> None:
        self.epoch = epoch
        self._rank, self._lookahead = rank, lookahead
        self._start = self.in_force = start
        self._history: dict[int, Vector] = {}
        self.first = self._read = first_draw
        self.undone: list[tuple[Part, float]] = []
        """Draws that no closed iteration has counted, each with its time in the loader in seconds."""
        self._parts: dict[int, Part] = {}
        self.newest = first_draw - 1
        """Index of the newest draw."""
        self._whole: tuple[IntArray, int, int] = (self._start.sizes, *self._place_in(self._start.sizes))
        self.ended = False
        """The loop has asked for one draw more than there are, and knows that the epoch is over."""

    @property
    def drawn(self) -> int:
        """Draws that this iterator has made."""
        return self.newest - self.first + 1

    @property
    def finished(self) -> bool:
        """No draw is left."""
        return self.newest + 1 >= self.epoch.draws

    def place(self) -> Place:
        """Where this iterator is, to be compared with other ranks."""
        return Place(self.epoch.key, self.newest, self.epoch.order_hash)

    def at_draw(self, in_force: Vector) -> None:
        """A draw begins; `in_force` are the sizes that follow the newest reduction."""
        self.newest += 1
        self.in_force = in_force
        self._history[self.newest] = in_force
        self._history.pop(self.newest - self._lookahead - 1, None)

    def next_part(self) -> Part | None:
        """The next part to read, None at the end; called at most `lookahead` parts ahead of the draws."""
        if self._read >= self.epoch.draws:
            return None
        part = self._part(self._read)
        self._parts[self._read] = part
        self._read += 1
        return part

    def part(self) -> Part:
        """The part of the newest draw."""
        for old in [draw for draw in self._parts if draw < self.newest]:
            del self._parts[old]
        return self._parts[self.newest]

    def indices(self, part: Part) -> IntArray:
        """Dataset indices of a part, (samples,)."""
        return self.epoch.order[part.start : part.start + part.samples]

    def _part(self, draw: int) -> Part:
        vector = self._start
        if draw - self.first >= self._lookahead:
            vector = self._history[draw - self._lookahead]
        batch = self.epoch.global_batch
        remaining = min(batch, len(self.epoch.order) - draw * batch)
        offset, samples = self._mine(vector.sizes, remaining)
        return Part(draw, draw * batch + offset, samples, remaining, vector.based_on_iteration)

    def _mine(self, sizes: IntArray, remaining: int) -> tuple[int, int]:
        """Offset and count in an iteration of so many samples; those of a whole one are kept while sizes hold."""
        if remaining < self.epoch.global_batch:
            offsets, counts = short_slices(sizes, self.epoch.global_batch, remaining)
            return int(offsets[self._rank]), int(counts[self._rank])
        if sizes is not self._whole[0]:
            self._whole = (sizes, *self._place_in(sizes))
        return self._whole[1:]

    def _place_in(self, sizes: IntArray) -> tuple[int, int]:
        return int(sizes[: self._rank].sum()), int(sizes[self._rank])
