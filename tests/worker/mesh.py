"""What simulated ranks share: a link in memory, and loaders that read ahead as torch's do. Seconds."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from lbbsp.worker.chunked import Ahead, ChunkedCursor
from lbbsp.worker.cursor import Cursor
from lbbsp.worker.vector import IntArray

HANG_S = 30.0


class Mesh:
    """What connects the ranks: broadcasts that wait for their receivers, as gloo's do, and reductions."""

    def __init__(self, world_size: int) -> None:
        self._changed = threading.Condition()
        self._posted = [0] * world_size
        self._sent: list[IntArray] = []
        self.reduction = threading.Barrier(world_size, timeout=HANG_S)

    def send(self, payload: IntArray) -> None:
        with self._changed:
            number = len(self._sent)
            if not self._changed.wait_for(lambda: min(self._posted[1:]) > number, HANG_S):
                raise TimeoutError(f"broadcast {number}: receives posted {self._posted}")
            self._sent.append(payload.copy())
            self._changed.notify_all()

    def receive(self, rank: int) -> Callable[[], IntArray]:
        with self._changed:
            number = self._posted[rank]
            self._posted[rank] += 1
            self._changed.notify_all()

        def wait() -> IntArray:
            with self._changed:
                if not self._changed.wait_for(lambda: len(self._sent) > number, HANG_S):
                    raise TimeoutError(f"rank {rank} waits for broadcast {number}, {len(self._sent)} were sent")
                return self._sent[number].copy()

        return wait


class MemoryLink:
    """One rank's end."""

    def __init__(self, mesh: Mesh, rank: int) -> None:
        self._mesh, self._rank = mesh, rank

    def send(self, payload: IntArray) -> None:
        self._mesh.send(payload)

    def receive(self) -> Callable[[], IntArray]:
        return self._mesh.receive(self._rank)


class Reading:
    """What a DataLoader does with a cursor: reads its number of batches or tasks ahead, one more after each draw."""

    def __init__(self, cursor: Cursor, ahead: int) -> None:
        self.cursor, self._ahead = cursor, ahead
        self._queue: deque[Any] = deque()
        for _ in range(ahead):
            self._read()

    def _read(self) -> None:
        item = self.cursor.next_part()
        if item is not None:
            self._queue.append(item)

    def next(self) -> list[int]:
        """Positions of this rank in the newest draw."""
        if self._ahead == 0:
            self._read()
        part = self._queue.popleft()
        if self._ahead:
            self._read()
        return list(range(part.start, part.start + part.samples))


class ChunkReading:
    """The same with chunks: as many tasks ahead as depth and tasks a draw make."""

    def __init__(self, cursor: ChunkedCursor, ahead: Ahead) -> None:
        self.cursor, self._ahead = cursor, ahead
        self._queue: deque[Any] = deque()
        for _ in range(ahead.tasks * ahead.depth):
            self._read()

    def _read(self) -> None:
        task = self.cursor.next_task()
        if task is not None:
            self._queue.append(task)

    def next(self) -> list[int]:
        tasks = self.cursor.tasks_of_draw()
        for task in tasks:
            assert self._queue.popleft() is task, "tasks come in another order than the loader read them"
            self._read()
        found: list[int] = []
        for piece in self.cursor.pieces(tasks):
            start, stop = piece.interval
            if piece.task is not None:
                fetched = [at for low, high in tasks[piece.task].intervals for at in range(low, high)]
                assert fetched[piece.offset : piece.offset + stop - start] == list(range(start, stop))
            found += range(start, stop)
        assert len(found) == self.cursor.part().samples
        return found
