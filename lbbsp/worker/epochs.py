"""The epochs of a job on one rank: their order, where training is in them, and how it is saved and resumed (rule 5).

What is saved is what was consumed, not what was fetched: alike on all ranks, good for any world size. Knows nothing of
frameworks: the order comes from an `Order`, terms are put into force by the caller. Sizes in samples.
"""

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from lbbsp.core.bounds import Bounds
from lbbsp.errors import ConfigError
from lbbsp.worker.cursor import Cursor, Epoch
from lbbsp.worker.follower import Follower
from lbbsp.worker.terms import Terms
from lbbsp.worker.vector import IntArray

STATE_VERSION = 1


class Order(Protocol):
    """Where an epoch's order comes from."""

    @property
    def samples(self) -> int:
        """Samples in an epoch."""

    def indices(self, key: int, seed: int) -> IntArray:
        """Dataset indices of the epoch with this key in order, (samples,); the same on every rank."""


class Permuted:
    """All samples, in order or shuffled by seed and epoch."""

    def __init__(self, samples: int, shuffle: bool) -> None:
        self.samples, self._shuffle = samples, shuffle

    def indices(self, key: int, seed: int) -> IntArray:
        """A permutation, (samples,)."""
        if not self._shuffle:
            return np.arange(self.samples, dtype=np.int64)
        generator = np.random.default_rng((seed, key))
        return np.asarray(generator.permutation(self.samples), dtype=np.int64)


class Epochs:
    """Begins epochs, each named by the reductions before it: a peek on one rank draws the same again.

    Args:
        order: of the samples.
        follower: of this rank.
        terms: what the ranks settled.
        put_in_force: called at a resume with the terms that hold from then on and the reductions before it.
    """

    def __init__(
        self, order: Order, follower: Follower, terms: Terms, put_in_force: Callable[[Terms, int], None]
    ) -> None:
        self._order, self._follower, self.terms = order, follower, terms
        self._put_in_force = put_in_force
        self._epoch: Epoch | None = None
        self._resume: tuple[int, int] | None = None

    @property
    def draws(self) -> int:
        """Iterations in an epoch."""
        return self.terms.draws or 0

    def begin(self) -> Cursor:
        """A new iterator; after a resume the first goes on within the epoch."""
        key, first_draw = self._place()
        return self._follower.begin(self._named(key), first_draw)

    def state(self) -> dict[str, Any]:
        """Where training is."""
        main = self._follower.places.main
        key, consumed = (main.epoch.key, main.newest + 1) if main else self._place()
        return {
            "version": STATE_VERSION,
            "epoch": key,
            "consumed_draws": consumed,
            "global_batch": self.terms.bounds.global_batch,
            "dataset_samples": self._order.samples,
            "seed": self.terms.seed,
            "reductions": self._follower.reductions,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on where state() was taken; all ranks must call, before their next begin().

        Raises:
            ConfigError: the state is of another data set or a newer version.
            BoundsError: its global batch can't be shared among these ranks.
        """
        if state.get("version") != STATE_VERSION or state["dataset_samples"] != self._order.samples:
            raise ConfigError(
                f"this state is version {state.get('version')} of a data set of {state.get('dataset_samples')} "
                f"samples, wanted version {STATE_VERSION} and {self._order.samples} samples: load it with the data "
                "that it was saved with"
            )
        self.terms = resumed(self.terms, state["global_batch"], state["seed"])
        self._put_in_force(self.terms, state["reductions"])
        self._epoch = None
        finished = state["consumed_draws"] >= self.draws
        self._resume = None if finished else (state["epoch"], state["consumed_draws"])

    def _place(self) -> tuple[int, int]:
        reductions = self._follower.reductions
        if self._resume is not None and self._follower.resumed_at == reductions:
            return self._resume
        return reductions, 0

    def _named(self, key: int) -> Epoch:
        """The epoch of this name; one order is kept, so that peeks and resumes don't draw it again."""
        if self._epoch is None or self._epoch.key != key:
            order = self._order.indices(key, self.terms.seed)
            self._epoch = Epoch(
                key, order, zlib.crc32(order.tobytes()), self.terms.bounds.global_batch, self.terms.drop_last
            )
        return self._epoch


def resumed(terms: Terms, global_batch: int, seed: int) -> Terms:
    """The terms after a resume: the checkpoint's global batch and seed; a maximum that was X stays X.

    Raises:
        BoundsError: the batch can't be shared among these ranks.
    """
    old = terms.bounds
    most = np.where(old.max_samples >= old.global_batch, global_batch, old.max_samples)
    bounds = Bounds(global_batch, old.min_samples, np.minimum(most, global_batch), old.granularity)
    bounds.check()
    return replace(terms, bounds=bounds, seed=seed)
