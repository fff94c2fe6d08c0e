"""A loader that fetches chunks ahead and makes the batch at the draw, so that prefetch does not make plans stale."""

import math
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, Sampler, default_collate

from lbbsp.adapters.pytorch import shipping
from lbbsp.adapters.pytorch.joining import Collated, Uncollated
from lbbsp.worker.chunked import ChunkedCursor, Piece
from lbbsp.worker.cursor import Cursor

CHOICES = ("auto", "on", "off")


class ChunkTasks(Sampler[list[int]]):
    """Gives the loader the indices of its tasks; `cursor` is that of the iterator being made."""

    def __init__(self) -> None:
        self.cursor: ChunkedCursor | None = None

    def __iter__(self) -> Iterator[list[int]]:
        """Tasks of the current cursor; bound now, read later."""
        return _tasks(self.cursor) if self.cursor is not None else iter(())


def _tasks(cursor: ChunkedCursor) -> Iterator[list[int]]:
    while (task := cursor.next_task()) is not None:
        yield cursor.indices_of(task.intervals) or [int(cursor.epoch.order[0])]


class Chunks:
    """Batches of one iterator, joined from its tasks.

    Args:
        loader: the user's.
        inner: iterates over the tasks' chunks; None without loader workers.
        cursor: says what the draw takes.
        joining: how chunks become batches.
    """

    def __init__(
        self,
        loader: "DataLoader[Any]",
        inner: Iterator[Any] | None,
        cursor: ChunkedCursor,
        joining: Collated | Uncollated,
    ) -> None:
        self._loader, self._inner, self._cursor, self._joining = loader, inner, cursor, joining
        self._served = cursor.newest

    def __iter__(self) -> Iterator[Any]:
        """Itself."""
        return self

    def __next__(self) -> Any:
        """The batch of the newest draw; one sample stands in for an empty one."""
        cursor = self._cursor
        if self._served == cursor.newest:
            if self._inner is not None:
                next(self._inner)  # ends here too, and lets its workers go
            raise StopIteration
        self._served = cursor.newest
        tasks = cursor.tasks_of_draw()
        chunks = [next(self._inner) for _ in tasks] if self._inner is not None else []
        pieces = cursor.pieces(tasks)
        if not pieces:
            first = cursor.newest * cursor.epoch.global_batch
            return self._joining.join([self._fetched(Piece((first, first + 1)))])
        return self._joining.join([self._piece(piece, chunks) for piece in pieces])

    def _piece(self, piece: Piece, chunks: list[Any]) -> Any:
        if piece.task is None:
            return self._fetched(piece)
        start, stop = piece.interval
        return self._joining.cut(chunks[piece.task], piece.offset, piece.offset + stop - start)

    def _fetched(self, piece: Piece) -> Any:
        """What no task brought, fetched here and now."""
        indices = self._cursor.indices_of([piece.interval])
        dataset: Any = self._loader.dataset
        samples = dataset.__getitems__(indices) if hasattr(dataset, "__getitems__") else [dataset[i] for i in indices]
        if isinstance(self._joining, Uncollated):
            return samples
        return self._joining.pack(samples)


class ChunkBatches:
    """The user's loader, fetching chunks ahead."""

    def __init__(self, loader: "DataLoader[Any]") -> None:
        self._loader = loader
        self._joining = joining_of(loader)
        self._tasks = ChunkTasks()
        self._inner = chunked(loader, self._tasks, self._joining) if loader.num_workers > 0 else None

    def iterate(self, cursor: Cursor) -> Iterator[Any]:
        """Batches of this cursor's draws."""
        if not isinstance(cursor, ChunkedCursor):
            raise TypeError(f"chunks need a cursor of chunks, got {type(cursor).__name__}")
        self._tasks.cursor = cursor
        inner = iter(self._inner) if self._inner is not None else None
        return Chunks(self._loader, inner, cursor, self._joining)


def joining_of(loader: "DataLoader[Any]") -> Collated | Uncollated:
    """How this loader's chunks become batches."""
    if loader.collate_fn is default_collate:
        return Collated(pinned=loader.pin_memory)
    return Uncollated(loader.collate_fn)


def chunked(loader: "DataLoader[Any]", tasks: ChunkTasks, joining: Collated | Uncollated) -> "DataLoader[Any]":
    """The user's loader over tasks; chunks are shipped where that is possible."""
    under_way = prefetched_tasks(loader)  # torch sends a worker no more tasks than this before their chunks are read
    shipped = shipping.Shipping(joining, keep=under_way + 2) if shipping.possible() else joining.pack
    return DataLoader(
        loader.dataset,
        batch_sampler=tasks,
        num_workers=loader.num_workers,
        collate_fn=shipped,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        generator=loader.generator,
        prefetch_factor=prefetched_tasks(loader),
        persistent_workers=loader.persistent_workers,
        multiprocessing_context=loader.multiprocessing_context,
    )


def tasks(loader: "DataLoader[Any]") -> int:
    """Tasks that an iteration is dealt into: few, since each costs the training thread a message."""
    return max(1, loader.num_workers // 2)


def prefetched_tasks(loader: "DataLoader[Any]") -> int:
    """Tasks ahead for each worker: half of the batches that the stock loader would fetch, at least 2."""
    return max(2, int(loader.prefetch_factor or 0) // 2)


def depth(loader: "DataLoader[Any]") -> int:
    """Iterations that tasks are made ahead of their draw; memory holds about as many batches."""
    return math.ceil(loader.num_workers * prefetched_tasks(loader) / tasks(loader))
