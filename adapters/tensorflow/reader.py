"""Reads a rank's parts from a source: at the draw, or in threads as many batches ahead as the job's lookahead."""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from lbbsp.adapters.tensorflow.source import Source
from lbbsp.worker.cursor import Cursor, Part
from lbbsp.worker.vector import IntArray

MOST_THREADS = 4


class Reader:
    """Batches of one iterator.

    Args:
        source: of the samples.
        cursor: says which; its draws are made by the training thread.
        lookahead: batches read ahead, alike on all ranks.
    """

    def __init__(self, source: Source, cursor: Cursor, lookahead: int) -> None:
        self._source, self._cursor = source, cursor
        self._pool = ThreadPoolExecutor(min(lookahead, MOST_THREADS), "lbbsp-reader") if lookahead else None
        self._ahead: deque[Future[Any]] = deque()
        for _ in range(lookahead):
            self._begin()

    def next(self) -> Any:
        """The batch of the newest draw; raises what the source or its map raised."""
        if self._pool is None:
            part = self._cursor.next_part()
            return None if part is None else self._source.read(self._indices(part))
        self._begin()
        return self._ahead.popleft().result()

    def close(self) -> None:
        """Read no more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        part = self._cursor.next_part()
        if part is not None and self._pool is not None:
            self._ahead.append(self._pool.submit(self._source.read, self._indices(part)))

    def _indices(self, part: Part) -> IntArray:
        return indices(self._cursor, part)


def indices(cursor: Cursor, part: Part) -> IntArray:
    """What to read for a part; for an empty one a sample, to be weighed 0: not every kernel takes an empty batch."""
    order = cursor.epoch.order
    if part.samples:
        return cursor.indices(part)
    start = min(part.start, len(order) - 1)
    return order[start : start + 1]
