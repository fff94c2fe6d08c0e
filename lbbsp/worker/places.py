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
        self.mixed = False
        """More than one iterator was drawn from since the newest iteration was closed."""
        self._live: list[Cursor] = []
        self._main_over = False
        """Training is done with the main iterator's newest draw: it was reduced, or the iterator has ended."""

    def drawn(self, cursor: Cursor) -> None:
        """This one was drawn from."""
        self.mixed |= self.main is not None and cursor is not self.main and bool(self.main.undone)
        if cursor in self._live:
            self._live.remove(cursor)
        self._live.append(cursor)
        if cursor is self.main or self._leads(cursor):
            self.main = cursor
            self._main_over = False

    def forget(self, cursor: Cursor) -> None:
        """This iterator has ended or died; the one drawn from before it leads again, else the next to be drawn."""
        if cursor in self._live:
            self._live.remove(cursor)
        if cursor is self.main:
            self._main_over = not self._live
            self.main = self._live[-1] if self._live else cursor

    def reduced(self) -> None:
        """A gradient reduction has followed the newest draw."""
        self._main_over = True

    def now(self) -> tuple[Place, ...]:
        """Where the iterators are, the main one first."""
        main = [self.main] if self.main else []
        others = [cursor for cursor in reversed(self._live) if cursor is not self.main]
        return tuple(cursor.place() for cursor in (main + others)[:PLACES])

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
        return main is None or cursor.drawn > 1 or self._main_over or main.drawn <= 1
