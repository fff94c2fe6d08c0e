"""The loader that balance() returns: iterates as the user's did, with this rank's part of each global batch."""

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from lbbsp.adapters.pytorch.chunks import ChunkBatches
from lbbsp.adapters.pytorch.order import Order, order_hash
from lbbsp.adapters.pytorch.planned import WholeBatches, cut_to_nothing
from lbbsp.errors import ConfigError, UnsupportedError
from lbbsp.worker.cursor import Cursor, Epoch

if TYPE_CHECKING:
    from lbbsp.adapters.pytorch.balancer import Balancer

STATE_VERSION = 1


class BalancedLoader:
    """Stands in for the user's DataLoader, whose other attributes it passes through.

    Attributes:
        balancer: what the loop may ask: stats(), weight(), mean().
    """

    def __init__(self, loader: "DataLoader[Any]", order: Order, balancer: "Balancer") -> None:
        self._loader, self._order = loader, order
        self.balancer = balancer
        self._source = ChunkBatches(loader) if balancer.terms.chunks else WholeBatches(loader)
        self._epochs: dict[int, Epoch] = {}
        self._resume: tuple[int, int] | None = None
        self.newest: Callable[[], BalancedIterator | None] = lambda: None

    def __len__(self) -> int:
        """Iterations in an epoch, the same on all ranks."""
        return self.balancer.terms.draws or 0

    def __iter__(self) -> "BalancedIterator":
        """Begin an epoch; the order is that of the user's sampler now."""
        self.balancer.before_draw()
        key, first_draw = self._place()
        cursor = self.balancer.follower.begin(self._epoch(key), first_draw)
        iterator = BalancedIterator(self, self._source.iterate(cursor), cursor)
        self.newest = weakref.ref(iterator)
        weakref.finalize(iterator, self.balancer.follower.places.forget, cursor)
        return iterator

    def overtaken(self, iterator: "BalancedIterator") -> bool:
        """Whether persistent workers, which serve one iterator at a time, now serve another."""
        shared = self._loader.num_workers > 0 and self._loader.persistent_workers
        return shared and self.newest() is not iterator

    def ended(self, cursor: Cursor) -> None:
        """This iterator's loop has seen its end: the next one begins an epoch."""
        cursor.ended = True
        if (cursor.epoch.key, cursor.first) == self._resume:
            self._resume = None

    def __getattr__(self, name: str) -> Any:
        """The user's loader answers for what it had: sampler, dataset, batch_size and so on."""
        return getattr(self.__dict__["_loader"], name)

    def mean(self, value: Any) -> Any:
        """The mean over the global batch of a mean over this rank's part; all ranks must call. See Balancer.mean."""
        return self.balancer.mean(value)

    def weight(self, *, valid_items: float) -> None:
        """Weigh this batch by valid items instead of samples; all ranks must call. See Balancer.weight."""
        self.balancer.weight(valid_items=valid_items)

    def state_dict(self) -> dict[str, Any]:
        """Where training is, by what was consumed: alike on all ranks, good for any world size."""
        main = self.balancer.follower.places.main
        key, consumed = (main.epoch.key, main.newest + 1) if main else self._place()
        return {
            "version": STATE_VERSION,
            "epoch": key,
            "consumed_draws": consumed,
            "ended": main is not None and main.ended,
            "global_batch": self.balancer.terms.bounds.global_batch,
            "dataset_samples": self._order.samples,
            "seed": self.balancer.terms.seed,
            "reductions": self.balancer.follower.reductions,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where state_dict() was taken; all ranks must call, before their next iter().

        The global batch stays that of the state; sizes start again from the equal split.

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
        self.balancer.resume(state["global_batch"], state["seed"], state["reductions"])
        self._order.reseed(state["seed"])
        self._order.resume(state["epoch"])
        self._epochs.clear()
        self._resume = None if state["ended"] else (state["epoch"], state["consumed_draws"])

    def _place(self) -> tuple[int, int]:
        """Key and first draw of the epoch that an iterator would begin now."""
        reductions = self.balancer.follower.reductions
        key = self._order.key(reductions)
        if self._resume is not None and self.balancer.follower.resumed_at == reductions:
            epoch, consumed = self._resume
            if not self._order.named_by_user or epoch == key:
                return epoch, consumed
        return key, 0

    def _epoch(self, key: int) -> Epoch:
        """The epoch of this name; one order is kept, so that peeks and resumes don't draw it again."""
        if key not in self._epochs:
            order = self._order.indices(key)
            terms = self.balancer.terms
            self._epochs = {key: Epoch(key, order, order_hash(order), terms.bounds.global_batch, terms.drop_last)}
        return self._epochs[key]


class BalancedIterator(Iterator[Any]):
    """One epoch on one rank."""

    def __init__(self, loader: BalancedLoader, inner: Iterator[Any], cursor: Cursor) -> None:
        self._loader, self._inner, self._cursor = loader, inner, cursor

    def __next__(self) -> Any:
        """This rank's part of the next global batch."""
        balancer, cursor = self._loader.balancer, self._cursor
        balancer.before_draw()
        if self._loader.overtaken(self):
            raise UnsupportedError(
                "another iterator was made from this loader, and persistent workers serve one at a time: use "
                "persistent_workers=False where the loop peeks into its loader"
            )
        follower = balancer.follower
        if cursor.finished:
            follower.finish()
            self._loader.ended(cursor)
            return next(self._inner)
        follower.draw(cursor)
        began_s = balancer.clock()
        batch = next(self._inner)
        part = follower.drawn(cursor, balancer.clock() - began_s)
        if cursor is follower.places.main:
            balancer.use(part)
        return batch if part.samples else cut_to_nothing(batch)

    def __len__(self) -> int:
        """Iterations in the epoch."""
        return self._cursor.epoch.draws


def require_thread(owner: int) -> None:
    """Draws count reductions as they go, so they must come from the thread that trains.

    Raises:
        UnsupportedError: another thread draws.
    """
    if threading.get_ident() != owner:
        raise UnsupportedError(
            f"thread {threading.current_thread().name!r} draws from a loader that another thread balanced: draw in the "
            "thread that trains, and call balance() there; use num_workers for reading ahead"
        )


def as_tensor(value: Any) -> torch.Tensor:
    """A number as a float64 CPU tensor of one element."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(device="cpu", dtype=torch.float64).reshape(1)
    return torch.tensor([float(value)], dtype=torch.float64)
