"""Batches out of chunks: each loader task's samples come collated or as they are; the draw cuts and joins them.

Default-collated chunks (tensors, numbers, strings, nested structures of them) are joined along the first dimension.
Under a user's own collate_fn chunks hold uncollated samples, by value, and are collated at the draw.
"""

import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from lbbsp.adapters.pytorch.shipping import AsTorch, ByValue, Pickler, by_value, plain

Collate = Callable[[list[Any]], Any]


class Collated:
    """Chunks as the default collate function makes them."""

    pickler: type[Pickler] = AsTorch

    def __init__(self, collate: Collate = default_collate, pinned: bool = False) -> None:
        self._collate = collate
        self._pinned = pinned and torch.cuda.is_available()

    def pack(self, samples: list[Any]) -> Any:
        """In a loader worker: one chunk."""
        return self._collate(samples)

    def gather(self, samples: list[Any]) -> Any:
        """In a loader worker: one chunk, in memory of the worker's own."""
        return _unshared(samples) if self._collate is default_collate else self._collate(samples)

    def cut(self, chunk: Any, start: int, stop: int) -> Any:
        """Samples start .. stop of a chunk."""
        return _mapped(lambda leaf: leaf[start:stop], chunk)

    def join(self, cuts: list[Any]) -> Any:
        """One batch."""
        if len(cuts) == 1 and not self._pinned:
            return cuts[0]
        return _joined(cuts, self._pinned)


class Uncollated:
    """Chunks of samples as the data set gives them, for a user's own collate function."""

    pickler: type[Pickler] = ByValue

    def __init__(self, collate: Collate) -> None:
        self._collate = collate

    def pack(self, samples: list[Any]) -> bytes:
        """In a loader worker: by value, since each shared tensor would cost a file descriptor."""
        return by_value(samples)

    def gather(self, samples: list[Any]) -> list[Any]:
        """In a loader worker: as they are."""
        return samples

    def cut(self, chunk: Any, start: int, stop: int) -> list[Any]:
        """Samples start .. stop of a chunk."""
        samples: list[Any] = pickle.loads(chunk) if isinstance(chunk, bytes) else chunk
        return samples[start:stop]

    def join(self, cuts: list[list[Any]]) -> Any:
        """One batch."""
        return self._collate([sample for cut in cuts for sample in cut])


def _unshared(samples: list[Any]) -> Any:
    """What default_collate makes of them, without its shared memory."""
    kinds = default_collate_fn_map
    if kinds[torch.Tensor] is collate_tensor_fn:
        kinds = kinds | {torch.Tensor: _stacked}
    return collate(samples, collate_fn_map=kinds)


def _stacked(tensors: list[torch.Tensor], *, collate_fn_map: Any) -> Any:
    """Stacked where stacking needs no rules."""
    if all(plain(tensor) and tensor.dtype == tensors[0].dtype for tensor in tensors):
        return torch.stack(tensors)
    return collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)


def _is_leaf(value: Any) -> bool:
    """Tensors, and the lists of strings that collate leaves as they are."""
    if isinstance(value, torch.Tensor):
        return True
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(one, str | bytes) for one in value)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    if _is_leaf(value):
        return function(value)
    if isinstance(value, dict):
        return _like(value, {key: _mapped(function, one) for key, one in value.items()})
    return _like(value, [_mapped(function, one) for one in value])


def _joined(values: list[Any], pinned: bool) -> Any:
    first = values[0]
    if isinstance(first, torch.Tensor):
        return _cat(values, pinned)
    if _is_leaf(first):
        return type(first)(one for value in values for one in value)
    if isinstance(first, dict):
        return _like(first, {key: _joined([value[key] for value in values], pinned) for key in first})
    return _like(first, [_joined(list(ones), pinned) for ones in zip(*values, strict=True)])


def _cat(tensors: list[torch.Tensor], pinned: bool) -> torch.Tensor:
    if not pinned:
        return torch.cat(tensors)
    first = tensors[0]
    samples = sum(len(tensor) for tensor in tensors)
    return torch.cat(tensors, out=torch.empty((samples, *first.shape[1:]), dtype=first.dtype, pin_memory=True))


def _like(original: Any, values: Any) -> Any:
    """A structure of the original's type."""
    if isinstance(original, tuple) and hasattr(original, "_fields"):
        return type(original)(*values)
    return type(original)(values) if isinstance(original, dict | tuple) else values
