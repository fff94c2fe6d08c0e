"""Where samples come from: anything with positions, read by index, then mapped.

Arrays, tensors or memory maps (alone or in tuples and dicts), sequences of samples, or the chain behind a tf.data
pipeline (see chain.py). Knows nothing of ranks or plans. Batches are structures of tensors, first dimension samples.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from lbbsp.errors import UnsupportedError
from lbbsp.worker.vector import IntArray

INSTEAD = (
    "give balance() what has positions: arrays or tensors (alone, in a tuple or a dict), a sequence of samples, or a "
    "tf.data pipeline of from_tensor_slices() or range() with shuffle, map, batch and prefetch behind it; what reads "
    "or decodes goes into map="
)


class Source(Protocol):
    """Samples by index."""

    samples: int

    def read(self, indices: IntArray) -> Any:
        """A batch of these samples."""


class Arrays:
    """Arrays or tensors of one length, in any structure.

    Raises:
        UnsupportedError: lengths differ, or a part has none.
    """

    def __init__(self, structure: Any) -> None:
        self._structure = structure
        self._leaves = [_readable(leaf) for leaf in tf.nest.flatten(structure)]
        lengths = {len(leaf) for leaf in self._leaves}
        if len(lengths) != 1:
            raise UnsupportedError(f"arrays of {sorted(lengths)} samples: give arrays of one length")
        self.samples = lengths.pop()

    def read(self, indices: IntArray) -> Any:
        """A batch, of the structure that was given."""
        return tf.nest.pack_sequence_as(self._structure, [_rows(leaf, indices) for leaf in self._leaves])


class Samples:
    """A sequence whose items are samples: arrays, numbers, or structures of them."""

    def __init__(self, sequence: Sequence[Any]) -> None:
        self._sequence = sequence
        self.samples = len(sequence)

    def read(self, indices: IntArray) -> Any:
        """A batch: the samples stacked."""
        items = [self._sequence[int(index)] for index in indices]
        columns = zip(*(tf.nest.flatten(item) for item in items), strict=True)
        stacked = [tf.convert_to_tensor(np.stack([np.asarray(value) for value in column])) for column in columns]
        return tf.nest.pack_sequence_as(items[0], stacked)


class Mapped:
    """A source and a function of its batches, called as tf.data calls it: a tuple's parts are the arguments."""

    def __init__(self, source: Source, function: Callable[..., Any]) -> None:
        self._source, self._function = source, function
        self.samples = source.samples

    def read(self, indices: IntArray) -> Any:
        """A batch, mapped."""
        return call(self._function, self._source.read(indices))


def call(function: Callable[..., Any], batch: Any) -> Any:
    """As tf.data calls a map function."""
    return function(*batch) if isinstance(batch, tuple) else function(batch)


def of(data: Any) -> Source:
    """The source behind what the user gave, tf.data pipelines excepted.

    Raises:
        UnsupportedError: it has no positions; says what does.
    """
    if isinstance(data, tuple | dict) or _is_array(data):
        return Arrays(data)
    if _gives_batches(data):
        raise UnsupportedError(f"{type(data).__name__} gives batches of its own size: {INSTEAD}")
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return Samples(data)
    raise UnsupportedError(f"{type(data).__name__} has no positions to read samples from: {INSTEAD}")


def _is_array(data: Any) -> bool:
    return tf.is_tensor(data) or (hasattr(data, "shape") and hasattr(data, "__getitem__"))


def _gives_batches(data: Any) -> bool:
    """Whether it is a Keras Sequence or PyDataset."""
    return any(base.__name__ in ("PyDataset", "Sequence") and "keras" in base.__module__ for base in type(data).__mro__)


def _readable(leaf: Any) -> Any:
    """A tensor of strings stays a tensor; of numbers it is read as an array, without a copy where that can be."""
    if tf.is_tensor(leaf):
        if leaf.shape.rank in (None, 0):
            raise UnsupportedError(f"a tensor of shape {leaf.shape} has no samples: give one whose rows are samples")
        return leaf if leaf.dtype == tf.string else leaf.numpy()
    if not _is_array(leaf) or not len(getattr(leaf, "shape", ())):
        raise UnsupportedError(f"{type(leaf).__name__} within the data has no rows: {INSTEAD}")
    return leaf


def _rows(leaf: Any, indices: IntArray) -> Any:
    if tf.is_tensor(leaf):
        return tf.gather(leaf, indices)
    count = len(indices)
    if count and int(indices[-1]) - int(indices[0]) == count - 1 and (np.diff(indices) == 1).all():
        return tf.convert_to_tensor(np.asarray(leaf[int(indices[0]) : int(indices[0]) + count]))
    return tf.convert_to_tensor(np.asarray(leaf[indices]))
