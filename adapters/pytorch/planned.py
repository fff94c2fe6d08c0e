"""The user's DataLoader, reading what the plan says: a batch sampler over a cursor, and the loader rebuilt around it.

Everything else of the user's loader is kept: data set, workers, collate function, pinning, timeout, seeds.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from lbbsp.errors import UnsupportedError
from lbbsp.worker.cursor import Cursor


class PlannedBatches(Sampler[list[int]]):
    """Gives the loader the indices of this rank's parts; `cursor` is that of the iterator being made."""

    def __init__(self) -> None:
        self.cursor: Cursor | None = None

    def __iter__(self) -> Iterator[list[int]]:
        """Batches of the current cursor; bound now, read later."""
        return _batches(self.cursor) if self.cursor is not None else iter(())


def _batches(cursor: Cursor) -> Iterator[list[int]]:
    while (part := cursor.next_part()) is not None:
        indices = cursor.indices(part)
        yield indices.tolist() if part.samples else [stand_in(cursor, part.start)]


def stand_in(cursor: Cursor, start: int) -> int:
    """The index read for an empty part, to be cut to nothing: loaders can't collate an empty list."""
    return int(cursor.epoch.order[min(start, len(cursor.epoch.order) - 1)])


class WholeBatches:
    """The user's loader, fetching whole batches ahead: sizes act as many iterations later."""

    def __init__(self, loader: "DataLoader[Any]") -> None:
        self._batches = PlannedBatches()
        self._inner = rebuilt(loader, self._batches)

    def iterate(self, cursor: Cursor) -> Iterator[Any]:
        """Batches of this cursor's draws."""
        self._batches.cursor = cursor
        return iter(self._inner)


def rebuilt(loader: "DataLoader[Any]", batches: PlannedBatches) -> "DataLoader[Any]":
    """The user's loader with our batch sampler."""
    return DataLoader(
        loader.dataset,
        batch_sampler=batches,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        generator=loader.generator,
        **worker_settings(loader),
    )


def worker_settings(loader: "DataLoader[Any]") -> dict[str, Any]:
    """The arguments that torch takes only where there are loader workers."""
    if loader.num_workers == 0:
        return {}
    return {
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
        "multiprocessing_context": loader.multiprocessing_context,
    }


def lookahead(loader: "DataLoader[Any]") -> int:
    """Batches that the loader reads ahead of the draws."""
    return loader.num_workers * int(loader.prefetch_factor or 0)


def check(loader: Any) -> None:
    """Refuse what can't be re-sized.

    Raises:
        UnsupportedError: names what the loader has and what works.
    """
    if not isinstance(loader, DataLoader):
        raise UnsupportedError(
            f"balance() needs a torch.utils.data.DataLoader, got {type(loader).__name__}: pass the DataLoader itself, "
            "or use Balancer for loops without one"
        )
    if isinstance(loader.dataset, IterableDataset):
        if loader.batch_size is None:
            raise UnsupportedError("batch_size=None can't be resized: give the DataLoader a batch_size")
        return
    if loader.batch_sampler is None:
        raise UnsupportedError("batch_size=None can't be resized: give the DataLoader a batch_size")
    if type(loader.batch_sampler) is not BatchSampler:
        raise UnsupportedError(
            f"batch sampler {type(loader.batch_sampler).__name__} makes batches of its own: pass batch_size= and a "
            "sampler instead; balance() decides the size of each batch"
        )
    if not getattr(loader, "in_order", True):
        raise UnsupportedError("in_order=False gives batches in another order on each rank: use in_order=True")


def drop_last(loader: "DataLoader[Any]") -> bool:
    """Whether the user's loader drops the short last batch."""
    return bool(loader.drop_last or getattr(loader.batch_sampler, "drop_last", False))


def batch_samples(loader: "DataLoader[Any]") -> int:
    """The batch size of the user's loader."""
    size = loader.batch_size if loader.batch_size is not None else getattr(loader.batch_sampler, "batch_size", 0)
    return int(size)


def cut_to_nothing(batch: Any) -> Any:
    """A collated batch of one sample as one of none: tensors lose their first dimension's entry, lists are emptied."""
    if isinstance(batch, torch.Tensor):
        return batch[:0]
    if isinstance(batch, dict):
        return {key: cut_to_nothing(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(cut_to_nothing(value) for value in batch))
    if isinstance(batch, (list, tuple)):
        if all(isinstance(value, str | bytes | int | float) for value in batch):
            return type(batch)()
        return type(batch)(cut_to_nothing(value) for value in batch)
    return batch
