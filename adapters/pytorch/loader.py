"""The loader that balance() returns: iterates as the user's did, with this rank's part of each global batch."""

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from lbbsp.adapters.pytorch.chunks import ChunkBatches
from lbbsp.adapters.pytorch.planned import WholeBatches, cut_to_nothing
from lbbsp.errors import UnsupportedError
from lbbsp.worker.cursor import Cursor
from lbbsp.worker.epochs import Epochs, Order

if TYPE_CHECKING:
    from lbbsp.adapters.pytorch.balancer import Balancer


class BalancedLoader:
    """Stands in for the user's DataLoader, whose other attributes it passes through.

    Attributes:
        balancer: what the loop may ask: stats(), weight(), mean().
    """

    def __init__(self, loader: "DataLoader[Any]", order: Order, balancer: "Balancer") -> None:
        self._loader = loader
        self.balancer = balancer
        self.epochs = Epochs(order, balancer.follower, balancer.terms, balancer.resume)
        self._source = ChunkBatches(loader) if balancer.terms.chunks else WholeBatches(loader)
        self.newest: Callable[[], BalancedIterator | None] = lambda: None

    def __len__(self) -> int:
        """Iterations in an epoch, the same on all ranks."""
        return self.balancer.terms.draws or 0

    def __iter__(self) -> "BalancedIterator":
        """Begin an epoch; the order is that of the user's sampler now."""
        self.balancer.before_draw()
        cursor = self.epochs.begin()
        iterator = BalancedIterator(self, self._source.iterate(cursor), cursor)
        self.newest = weakref.ref(iterator)
        weakref.finalize(iterator, self.balancer.follower.places.forget, cursor)
        return iterator

    def overtaken(self, iterator: "BalancedIterator") -> bool:
        """Whether persistent workers, which serve one iterator at a time, now serve another."""
        shared = self._loader.num_workers > 0 and self._loader.persistent_workers
        return shared and self.newest() is not iterator

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
        return self.epochs.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where state_dict() was taken; all ranks must call, before their next iter().

        The global batch stays that of the state; sizes start again from the equal split.

        Raises:
            ConfigError: the state is of another data set or a newer version.
            BoundsError: its global batch can't be shared among these ranks.
        """
        self.epochs.load(state)


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
            self._loader.epochs.ended(cursor)
            return next(self._inner)
        follower.draw(cursor)
        began_s = balancer.clock()
        batch = next(self._inner)
        part = follower.drawn(cursor, balancer.clock() - began_s)
        if cursor is follower.places.main:
            balancer.use(part)
            if part.samples:
                balancer.count(batch)
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
