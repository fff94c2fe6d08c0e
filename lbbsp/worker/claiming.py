"""One rank's claims in one iteration: units of a pool, from a counter that all ranks add to.

`end = add(n)` gives this rank the units end - n .. end, clipped at the pool's: each unit goes to one rank, in any
order of adding. The counter starts at 0, is named anew for each iteration and never reset. Knows nothing of stores.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from lbbsp.core.parts import FACTOR, chunk_units

T = TypeVar("T")


class Counter(Protocol):
    """The counter of one iteration."""

    def add(self, units: int) -> int:
        """Add and return the sum so far, this included."""

    def later(self, call: Callable[[], T], delay_s: float) -> Callable[[], T]:
        """Call in another thread, after a delay or as soon as somebody waits; what is returned waits for the result."""


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
        return max(self.ranks * self.least, math.ceil(FACTOR * left))


class Claims:
    """The claims of one rank in one iteration.

    Args:
        counter: of this iteration, shared by all ranks.
        chunking: how this rank cuts the pool.
    """

    def __init__(self, counter: Counter, chunking: Chunking) -> None:
        self._counter, self._chunking = counter, chunking
        self._left = chunking.units
        self._pending: Callable[[], tuple[int, int]] | None = None
        self.asked = 0

    def ask_within(self, delay_s: float) -> None:
        """A piece of work begins that takes a little longer than this: claim the next meanwhile, at its end.

        Only while more is left than all ranks' next chunks: at the end, who is ready first takes what there is.
        """
        if self._pending is None and self._left > self._chunking.all_next(self._left):
            self._pending = self._counter.later(self._take, delay_s)

    def next(self) -> tuple[int, int] | None:
        """The next claim, first unit and end; None when the pool is taken."""
        if self._pending is None and self._left <= 0:
            return None
        take, self._pending = self._pending or self._take, None
        first, end = take()
        self._left = max(0, self._chunking.units - end)
        return (first, min(end, self._chunking.units)) if first < end else None

    def _take(self) -> tuple[int, int]:
        """Look how much is left now, then claim of that: what was left at this rank's last claim may be long gone."""
        self.asked += 1
        taken = self._counter.add(0)
        if taken >= self._chunking.units:
            return taken, taken
        units = self._chunking.next_units(self._chunking.units - taken)
        end = self._counter.add(units)
        first = end - units
        return (first, end) if first < self._chunking.units else (end, end)
