"""The order of an epoch's samples that all ranks share, from the sampler that the user already has.

A stock DistributedSampler keeps its seed, shuffle and epoch; its padding is dropped. A plain sampler is iterated under
random states seeded alike on all ranks, so that it gives the same order everywhere.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, RandomSampler, Sampler
from torch.utils.data.distributed import DistributedSampler

from lbbsp.errors import UnsupportedError
from lbbsp.worker.vector import IntArray


class DistributedOrder:
    """The order of a stock DistributedSampler, whole; `set_epoch` on the user's object counts."""

    named_by_user = True

    def __init__(self, sampler: "DistributedSampler[Any]") -> None:
        self._sampler = sampler

    @property
    def samples(self) -> int:
        """Samples in the data set."""
        return len(self._sampler.dataset)  # type: ignore[arg-type]

    def key(self, reductions: int) -> int:
        """The sampler's epoch."""
        return self._sampler.epoch

    def indices(self, key: int, seed: int) -> IntArray:
        """As the sampler itself permutes, by a seed of its own, before it pads and deals out."""
        if not self._sampler.shuffle:
            return np.arange(self.samples, dtype=np.int64)
        generator = torch.Generator()
        generator.manual_seed(self._sampler.seed + key)
        order: IntArray = torch.randperm(self.samples, generator=generator).numpy()
        return order

    def resume(self, key: int) -> None:
        """Set the sampler's epoch, as the user's loop would."""
        self._sampler.set_epoch(key)


class PlainOrder:
    """The order of a sampler that knows nothing of ranks, under random states seeded by the job and the epoch."""

    named_by_user = False

    def __init__(self, sampler: "Sampler[Any]") -> None:
        self._sampler = sampler

    @property
    def samples(self) -> int:
        """Samples that the sampler gives in an epoch."""
        return len(self._sampler)  # type: ignore[arg-type]

    def key(self, reductions: int) -> int:
        """The reductions before the epoch: a peek on one rank draws the same order again and moves nothing."""
        return reductions

    def indices(self, key: int, seed: int) -> IntArray:
        """One pass over the sampler."""
        with _seeded(seed + 1_000_003 * key), _own_generator(self._sampler, seed + 1_000_003 * key):
            return np.fromiter((int(index) for index in self._sampler), dtype=np.int64)

    def resume(self, key: int) -> None:
        """Nothing to set: the loader names the epoch when it begins again."""


def of_loader(loader: "DataLoader[Any]") -> DistributedOrder | PlainOrder:
    """The order behind a loader.

    Raises:
        UnsupportedError: the sampler is sharded in a way of its own, or has no length.
    """
    sampler = getattr(loader.batch_sampler, "sampler", None)
    if type(sampler) is DistributedSampler:
        return DistributedOrder(sampler)
    if sampler is None or hasattr(sampler, "num_replicas") or hasattr(sampler, "rank"):
        raise UnsupportedError(
            f"sampler {type(sampler).__name__} deals samples out to ranks in a way of its own: pass a "
            "torch.utils.data.DistributedSampler, a sampler of the whole data set, or shuffle=True"
        )
    if not hasattr(sampler, "__len__"):
        raise UnsupportedError(f"sampler {type(sampler).__name__} has no length: give it __len__")
    return PlainOrder(sampler)


def sees_whole_set(loader: "DataLoader[Any]") -> bool:
    """Whether each rank saw every sample in an epoch before balance(): shuffle=True without sharding."""
    return isinstance(getattr(loader.batch_sampler, "sampler", None), RandomSampler)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """All usual random states seeded alike, and put back afterwards."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


@contextmanager
def _own_generator(sampler: Any, seed: int) -> Iterator[None]:
    """A sampler with a torch generator of its own gets one that is seeded alike on all ranks."""
    generator = getattr(sampler, "generator", None)
    if not isinstance(generator, torch.Generator):
        yield
        return
    sampler.generator = torch.Generator().manual_seed(seed)
    try:
        yield
    finally:
        sampler.generator = generator
