"""Which iterators a rank draws from, and which of them training follows: the main one.

A peek (`next(iter(loader))`) is an iterator too: it dies at once or draws once, and must move nothing. Pure.
"""

from lbbsp.worker.cursor import Cursor, Part
from lbbsp.worker.vector import PLACES, Place


class Places:
    """The iterators of a rank, in the order of their newest draws."""

    def __init__(self) -> None:
        self.main: Cursor | None = None
        """The iterator that training follows; kept when it has ended."""
        self._leader: Cursor | None = None
        """The iterator whose batch gradients are weighed by: the main one of the newest draw, dead or not."""
        self.mixed = False
        """More than one iterator was drawn from since the newest iteration was closed."""
        self._live: list[Cursor] = []
        self._followed: dict[Cursor, int] = {}
        """Live iterators that training has followed, the latest last, with their newest draw that was reduced."""

    def drawn(self, cursor: Cursor) -> None:
        """This one was drawn from."""
        self.mixed |= self.main is not None and cursor is not self.main and bool(self.main.undone)
        if cursor in self._live:
            self._live.remove(cursor)
        self._live.append(cursor)
        if cursor is self.main or self._leads(cursor):
            self._unfollow_peek(cursor)
            self.main = self._leader = cursor

    def forget(self, cursor: Cursor) -> None:
        """This iterator has ended or died; one that training followed before it leads again, else the next drawn.

        A peek that lives on never takes the place of the iterator that training followed.
        """
        if cursor in self._live:
            self._live.remove(cursor)
        was_followed = self._followed.pop(cursor, None) is not None
        if cursor is self.main:
            earlier = list(self._followed) or ([] if was_followed else self._live)
            self.main = earlier[-1] if earlier else cursor

    def reduced(self) -> None:
        """A gradient reduction has followed the newest draw."""
        if self.main in self._live:
            self._followed.pop(self.main, None)
            self._followed[self.main] = self.main.newest

    def now(self) -> tuple[Place, ...]:
        """Where the iterators are; first the one whose batch is under way."""
        if self._live == [self._leader] and self._leader:
            return (self._leader.place(),)
        leader = [self._leader] if self._leader else []
        others = [cursor for cursor in reversed(self._live) if cursor is not self._leader]
        return tuple(cursor.place() for cursor in (leader + others)[:PLACES])

    def take(self) -> list[tuple[Part, float]]:
        """What was drawn for the iteration that ends, each with its time in the loader; a new one begins."""
        self.mixed = False
        if self.main is None:
            return []
        undone, self.main.undone = self.main.undone, []
        return undone

    @property
    def first_draw(self) -> int:
        """The first draw of the main iterator."""
        return self.main.first if self.main else 0

    def _leads(self, cursor: Cursor) -> bool:
        main = self.main
        return main is None or cursor.drawn > 1 or self._over(main) or main.drawn <= 1

    def _unfollow_peek(self, cursor: Cursor) -> None:
        """At an iterator's second draw it shows which of two with one draw each was a peek at the same place."""
        main = self.main
        if main is None or cursor is main or main.drawn != 1:
            return
        if (main.epoch.key, main.newest + 1) == (cursor.epoch.key, cursor.newest):
            self._followed.pop(main, None)

    def _over(self, main: Cursor) -> bool:
        """Training is done with the main iterator's newest draw: it was reduced, or the iterator has ended."""
        return main not in self._live or self._followed.get(main) == main.newest
