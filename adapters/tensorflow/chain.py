"""The indexable source behind a tf.data pipeline: its steps are taken apart and done again on slices.

Served: from_tensor_slices() or range(), then shuffle, map, cache, batch, prefetch and options. A shuffle becomes one
permutation of all samples that the ranks share; cache is left out. tf.data keeps the steps of a pipeline in private
attributes; where one is missing the pipeline is refused, as one that can't be read by position.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from lbbsp.adapters.tensorflow.source import INSTEAD, Arrays, Mapped, Source
from lbbsp.errors import UnsupportedError
from lbbsp.worker.vector import IntArray

PASSED = ("_OptionsDataset", "CacheDataset", "_CacheDataset", "_FinalizeDataset")
SHUFFLES = ("_ShuffleDataset", "ShuffleDataset")
PREFETCHES = ("_PrefetchDataset", "PrefetchDataset")
MAPS = ("_MapDataset", "_ParallelMapDataset", "MapDataset", "ParallelMapDataset")
BATCHES = ("_BatchDataset", "_ParallelBatchDataset", "BatchDataset", "ParallelBatchDataset")


@dataclass(frozen=True)
class Pipeline:
    """What a pipeline does, for the adapter."""

    source: Source
    batch_samples: int
    drop_last: bool
    shuffle: bool
    lookahead: int
    """Batches that its last prefetch keeps ready, 1 where tf.data may choose; 0 without a map to overlap."""


def taken_apart(dataset: Any) -> Pipeline:
    """The steps of a pipeline.

    Raises:
        UnsupportedError: it can't be read by position, or makes no batches.
    """
    try:
        return _pipeline(list(_steps(dataset)))
    except AttributeError as error:
        raise UnsupportedError(f"this tf.data pipeline can't be read by position ({error}): {INSTEAD}") from error


def _pipeline(steps: list[Any]) -> Pipeline:
    origin, rest = steps[0], steps[1:]
    source = _origin(origin)
    batch = None
    shuffle, lookahead, maps = False, 0, 0
    for step in rest:
        name = type(step).__name__
        if name in SHUFFLES:
            shuffle = True
        elif name in PREFETCHES:
            lookahead = int(step._buffer_size)
        elif name in MAPS:
            maps += 1
            source = _mapped(source, step, batched=batch is not None)
        elif name in BATCHES and batch is None:
            batch = step
        elif name not in PASSED:
            raise UnsupportedError(f"the pipeline's step {name.strip('_')} can't be read by position: {INSTEAD}")
    if batch is None:
        raise UnsupportedError("the tf.data pipeline makes no batches: end it with .batch(GLOBAL_BATCH)")
    return Pipeline(
        source,
        int(batch._batch_size),
        bool(batch._drop_remainder),
        shuffle,
        (1 if lookahead < 0 else lookahead) if maps else 0,
    )


def _steps(dataset: Any) -> Iterator[Any]:
    """From the origin to the end."""
    above = getattr(dataset, "_input_dataset", None)
    if above is not None:
        yield from _steps(above)
    yield dataset


def _origin(dataset: Any) -> Source:
    name = type(dataset).__name__
    if name in ("_TensorSliceDataset", "TensorSliceDataset"):
        return Arrays(tf.nest.pack_sequence_as(dataset.element_spec, dataset._tensors))
    if name in ("_RangeDataset", "RangeDataset"):
        return Arrays(tf.range(dataset._start, dataset._stop, dataset._step))
    raise UnsupportedError(f"a tf.data pipeline from {name.strip('_')} can't be read by position: {INSTEAD}")


def _mapped(source: Source, step: Any, batched: bool) -> Source:
    """The source with a map of the pipeline, over batches or sample by sample."""
    function = step._map_func._func
    return Mapped(source, tf.function(function, reduce_retracing=True)) if batched else Each(source, function)


class Each:
    """A source and a function of single samples, run by tf.data over each batch; traced once."""

    def __init__(self, source: Source, function: Callable[..., Any]) -> None:
        self._source, self._function = source, function
        self.samples = source.samples
        self._whole = tf.function(self._over, reduce_retracing=True)

    def read(self, indices: IntArray) -> Any:
        """A batch of mapped samples."""
        return self._whole(self._source.read(indices), tf.constant(len(indices), tf.int64))

    def _over(self, batch: Any, count: Any) -> Any:
        samples = tf.data.Dataset.from_tensor_slices(batch)
        mapped = samples.map(self._function, num_parallel_calls=tf.data.AUTOTUNE)
        return mapped.batch(count).get_single_element()
