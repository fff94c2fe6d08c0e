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

    named_by_user: bool
    """Whether the user names the epochs, as by set_epoch."""

    @property
    def samples(self) -> int:
        """Samples in an epoch."""

    def key(self, reductions: int) -> int:
        """What names the epoch that begins after so many gradient reductions."""

    def indices(self, key: int, seed: int) -> IntArray:
        """Dataset indices of the epoch with this key in order, (samples,); the same on every rank."""

    def resume(self, key: int) -> None:
        """The epoch under way has this key."""


class Permuted:
    """All samples, in order or shuffled by seed and epoch."""

    named_by_user = False

    def __init__(self, samples: int, shuffle: bool) -> None:
        self.samples, self._shuffle = samples, shuffle

    def key(self, reductions: int) -> int:
        """The reductions before the epoch: a peek on one rank draws the same order again and moves nothing."""
        return reductions

    def indices(self, key: int, seed: int) -> IntArray:
        """A permutation, (samples,)."""
        if not self._shuffle:
            return np.arange(self.samples, dtype=np.int64)
        generator = np.random.default_rng((seed, key))
        return np.asarray(generator.permutation(self.samples), dtype=np.int64)

    def resume(self, key: int) -> None:
        """Nothing to set: an epoch is named when it begins."""


class Epochs:
    """Begins epochs, each named by its order, and says where training is in them.

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
        key, first_draw = self.place()
        return self._follower.begin(self.named(key), first_draw)

    def ended(self, cursor: Cursor) -> None:
        """This iterator's loop has seen its end: the next one begins an epoch."""
        cursor.ended = True
        if (cursor.epoch.key, cursor.first) == self._resume:
            self._resume = None

    def state(self) -> dict[str, Any]:
        """Where training is, by what was consumed: alike on all ranks, good for any world size."""
        main = self._follower.places.main
        key, consumed = (main.epoch.key, main.newest + 1) if main else self.place()
        return {
            "version": STATE_VERSION,
            "epoch": key,
            "consumed_draws": consumed,
            "ended": main is not None and main.ended,
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
        check_state(state, self._order.samples)
        self.terms = resumed(self.terms, state["global_batch"], state["seed"])
        self._put_in_force(self.terms, state["reductions"])
        self._order.resume(state["epoch"])
        self._epoch = None
        self._resume = None if state["ended"] else (state["epoch"], state["consumed_draws"])

    def place(self) -> tuple[int, int]:
        """Key and first draw of the epoch that an iterator would begin now."""
        reductions = self._follower.reductions
        key = self._order.key(reductions)
        if self._resume is not None and self._follower.resumed_at == reductions:
            epoch, consumed = self._resume
            if not self._order.named_by_user or epoch == key:
                return epoch, consumed
        return key, 0

    def named(self, key: int) -> Epoch:
        """The epoch of this name; one order is kept, so that peeks and resumes don't draw it again."""
        if self._epoch is None or self._epoch.key != key:
            order = self._order.indices(key, self.terms.seed)
            self._epoch = Epoch(
                key, order, zlib.crc32(order.tobytes()), self.terms.bounds.global_batch, self.terms.drop_last
            )
        return self._epoch


def check_state(state: dict[str, Any], samples: int) -> None:
    """That a saved state can be loaded with a data set of so many samples.

    Raises:
        ConfigError: it is of another data set or a newer version.
    """
    if state.get("version") != STATE_VERSION or state["dataset_samples"] != samples:
        raise ConfigError(
            f"this state is version {state.get('version')} of a data set of {state.get('dataset_samples')} "
            f"samples, wanted version {STATE_VERSION} and {samples} samples: load it with the data that it was saved "
            "with"
        )


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
