"""A channel without manager or peers: sizes stay as they are. For a world of one rank, and for LBBSP_DISABLE=1."""

import time
from dataclasses import replace

from lbbsp.core.bounds import Bounds
from lbbsp.protocol import Hello
from lbbsp.worker.channel import Reduction
from lbbsp.worker.follower import Follower
from lbbsp.worker.owntime import HostMarks, OwnTime
from lbbsp.worker.terms import Offer, Terms, hello
from lbbsp.worker.vector import Place, Vector


class Still:
    """Implements Channel."""

    def __init__(self, start: Vector) -> None:
        self._vector = start

    def reduction(self, event: Reduction) -> None:
        """Count it."""
        self._vector = replace(self._vector, sequence=event.sequence)

    def reduced(self) -> None:
        """Nothing to do."""

    def vector(self, usual_tail_s: float, sent: bool = False) -> tuple[Vector, tuple[Place, ...]]:
        """The same sizes for ever."""
        return self._vector, ()

    def restart(self, hello: Hello, start: Vector, bounds: Bounds) -> None:
        """Go on with these."""
        self._vector = replace(start, sequence=self._vector.sequence)

    def close(self) -> None:
        """Nothing to do."""


class Alone:
    """Stands in for a Session where nothing is balanced."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower

    def resume(self, terms: Terms, reductions: int) -> None:
        """Sizes fall back to the equal split under the new terms."""
        start = Vector(terms.bounds.equal())
        self.follower.fall_back(start, self.follower.hello, reductions)
        self.follower.channel.restart(self.follower.hello, start, terms.bounds)

    def close(self) -> None:
        """Nothing to do."""


def alone(terms: Terms, offer: Offer, rank: int) -> Alone:
    """A rank that keeps the equal split."""
    start = Vector(terms.bounds.equal())
    own = OwnTime(HostMarks(time.perf_counter), time.perf_counter)
    return Alone(Follower(hello(terms, offer, rank, ()), Still(start), start, terms.lookahead, own, time.perf_counter))
