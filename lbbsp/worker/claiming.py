"""One rank's claims in one iteration: units of a pool, from a counter that all ranks add to.

`end = add(n)` gives this rank the units end - n .. end, clipped at the pool's: each unit goes to one rank, in any
order of adding. The counter starts at 0, is named anew for each iteration and never reset. Knows nothing of stores.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from lbbsp.core.parts import chunk_units

AHEAD_WORTH = 0.01
"""A claim is asked for ahead where the answer takes longer than this part of a chunk's work."""


class Counter(Protocol):
    """The counter of one iteration."""

    def add(self, units: int) -> int:
        """Add and return the sum so far, this included."""

    def add_later(self, units: int) -> Callable[[], int]:
        """Begin to add; what is returned waits for the sum."""


@dataclass(frozen=True)
class Chunking:
    """How one rank cuts a pool."""

    units: int
    """Of the pool."""
    ranks: int
    share: float
    """The rank's part of the job's speed, 0 .. 1."""
    least: int = 1
    most: int = 2**31
    menu: bool = False

    def next_units(self, left: int) -> int:
        """The next chunk where so many units are left."""
        return chunk_units(left, self.share, self.least, self.most, self.menu)

    def all_next(self, left: int) -> int:
        """About what all ranks' next chunks take together."""
        return max(self.ranks * self.least, (left + 1) // 2)


class Claims:
    """The claims of one rank in one iteration.

    Args:
        counter: of this iteration, shared by all ranks.
        chunking: how this rank cuts the pool.
        ahead: whether the next claim may be asked for while a chunk is worked.
    """

    def __init__(self, counter: Counter, chunking: Chunking, ahead: bool = False) -> None:
        self._counter, self._chunking, self._ahead = counter, chunking, ahead
        self._left = chunking.units
        self._pending: tuple[int, Callable[[], int]] | None = None
        self.asked = 0

    def next(self) -> tuple[int, int] | None:
        """The next claim, first unit and end; None when the pool is taken."""
        if self._pending is None and self._left <= 0:
            return None
        units, wait = self._pending or self._ask()
        self._pending = None
        end = wait()
        self._left = max(0, self._chunking.units - end)
        if end - units >= self._chunking.units:
            return None
        if self._ahead and self._left > self._chunking.all_next(self._left):
            self._pending = self._ask_later()
        return end - units, min(end, self._chunking.units)

    def _ask(self) -> tuple[int, Callable[[], int]]:
        self.asked += 1
        units = self._chunking.next_units(self._left)
        end = self._counter.add(units)
        return units, lambda: end

    def _ask_later(self) -> tuple[int, Callable[[], int]]:
        self.asked += 1
        units = self._chunking.next_units(self._left)
        return units, self._counter.add_later(units)
