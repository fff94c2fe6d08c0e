"""The loader of balance(..., claims=True): each item is one iteration, itself a loop over this rank's micro-batches.

A rank works its planned part, then claims chunks of the iteration's pool until it is taken; when the inner loop ends,
gradients are averaged once. Where the plan leaves no pool, an iteration is one batch and DDP's own reduction serves.
"""

import math
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from lbbsp.adapters.pytorch.accumulate import Accumulation
from lbbsp.adapters.pytorch.chunks import ChunkBatches, Chunks
from lbbsp.adapters.pytorch.counter import Counters
from lbbsp.adapters.pytorch.iteration import TWO_LEVELS, MicroBatches
from lbbsp.adapters.pytorch.loader import BalancedIterator, BalancedLoader
from lbbsp.adapters.pytorch.models import device_of, is_compiled, unwrap
from lbbsp.adapters.pytorch.pace import Pace
from lbbsp.core.bounds import Bounds
from lbbsp.errors import UnsupportedError
from lbbsp.worker.chunked import Ahead, ChunkedCursor, Task
from lbbsp.worker.claiming import Chunking, Claims
from lbbsp.worker.cursor import Cursor
from lbbsp.worker.epochs import Order
from lbbsp.worker.homes import Interval
from lbbsp.worker.micro import MicroCost
from lbbsp.worker.pool import Cutting, PoolCursor

if TYPE_CHECKING:
    from lbbsp.adapters.pytorch.balancer import Balancer


class PoolChunks(Chunks):
    """Micro-batches of one iterator: from what loader workers fetched, the rest fetched here and now."""

    def __init__(
        self, loader: "DataLoader[Any]", inner: Iterator[Any] | None, cursor: PoolCursor, joining: Any
    ) -> None:
        super().__init__(loader, inner, cursor, joining)
        self._pool_cursor = cursor
        self._tasks: list[Task] = []
        self._fetched_ahead: list[Any] = []

    def begin(self) -> None:
        """Take what was fetched for the newest draw."""
        self._served = self._cursor.newest
        self._tasks = self._cursor.tasks_of_draw()
        self._fetched_ahead = [next(self._inner) for _ in self._tasks] if self._inner is not None else []

    def take(self, intervals: list[Interval]) -> Any:
        """The samples of these positions, at least one, as one batch."""
        pieces = self._pool_cursor.pieces_of(intervals, self._tasks)
        return self._joining.join([self._piece(piece, self._fetched_ahead) for piece in pieces])

    def drop(self) -> None:
        """The newest draw needs no more."""
        self._tasks, self._fetched_ahead = [], []
        self._pool_cursor.forget_homes()


class PoolBatches(ChunkBatches):
    """The user's loader, fetching planned parts ahead."""

    def iterate(self, cursor: Cursor) -> PoolChunks:
        """Micro-batches of this cursor's draws."""
        if not isinstance(cursor, PoolCursor):
            raise TypeError(f"claims need a cursor with a pool, got {type(cursor).__name__}")
        self._tasks.cursor = cursor
        inner = iter(self._inner) if self._inner is not None else None
        return PoolChunks(self._loader, inner, cursor, self._joining)


class ClaimsLoader(BalancedLoader):
    """Stands in for the user's DataLoader; its items are iterations, loops over micro-batches."""

    def __init__(self, loader: "DataLoader[Any]", order: Order, balancer: "Balancer", models: Sequence[Any]) -> None:
        super().__init__(loader, order, balancer)
        self._source: PoolBatches = PoolBatches(loader)
        control, ddps = balancer.control, [unwrap(model) for model in models]
        for ddp in ddps:
            ddp.register_forward_pre_hook(_no_iteration)
        self.accumulation = Accumulation(ddps, control.post_sum, control.world_size)
        self.counters = Counters(control.timeout)
        self._claims: dict[str, Claims] = {}
        self.open: MicroBatches | None = None
        """The iteration whose micro-batches were asked for last."""
        self.pace = Pace(device_of(ddps[0]))
        self.micro = MicroCost()
        self._menu = any(is_compiled(model) for model in models)

    def __iter__(self) -> "ClaimsIterator":
        """Begin an epoch; the order is that of the user's sampler now."""
        self.balancer.before_draw()
        self.close_open()
        follower = self.balancer.follower
        key, first_draw = self.epochs.place()
        epoch = self.epochs.named(key)
        begun = follower.begin(epoch, first_draw)
        ahead = begun.ahead if isinstance(begun, ChunkedCursor) else Ahead()
        cutting = cutting_of(self.balancer.terms.bounds, self.balancer.session.rank, self._menu)
        cursor = PoolCursor(epoch, self.balancer.session.rank, ahead, follower.in_force, first_draw, cutting)
        iterator = ClaimsIterator(self, self._source.iterate(cursor), cursor)
        self.newest = weakref.ref(iterator)
        weakref.finalize(iterator, follower.places.forget, cursor)
        return iterator

    def close_open(self) -> None:
        """The loop goes on to another iteration: the one before must have been worked to its end.

        Raises:
            UnsupportedError: it was broken off.
        """
        if self.open is not None:
            open_, self.open = self.open, None
            open_.leave()

    def claims_of(self, name: str, chunking: Chunking) -> Claims:
        """This rank's claims in the iteration of this name: those that a look into the loader began go on."""
        if name not in self._claims:
            self._claims[name] = Claims(self.counters.of(name), chunking)
        return self._claims[name]

    def claims_reduced(self) -> None:
        """All ranks are past the claims so far."""
        self._claims.clear()
        self.counters.reduced(delete=self.balancer.session.rank == 0)

    def mean(self, value: Any) -> Any:
        """The mean over the global batch of a mean over all that this rank worked; once an iteration, after its end.

        Raises:
            UnsupportedError: called among micro-batches, whose number differs from rank to rank.
        """
        if self.open is not None and self.open.under_way:
            raise UnsupportedError(
                "mean() among micro-batches would hang, since ranks work different numbers of them: add up your loss "
                "times len(batch) there, divide by the samples, and call mean() after the inner loop"
            )
        return super().mean(value)

    def weight(self, *, valid_items: float) -> None:
        """Weigh this micro-batch by valid items instead of samples, before its backward pass; in all or in none."""
        if self.open is None or not self.open.weigh(valid_items):
            super().weight(valid_items=valid_items)

    def state_dict(self) -> dict[str, Any]:
        """Where training is, by what was reduced: alike on all ranks, good for any world size."""
        state = super().state_dict()
        main = self.balancer.follower.places.main
        if isinstance(main, PoolCursor):
            state["consumed_draws"] = main.reduced
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where state_dict() was taken; see BalancedLoader.load_state_dict."""
        if self.open is not None:
            self.open.close()
            self.open = None
        super().load_state_dict(state)


class ClaimsIterator(BalancedIterator):
    """One epoch on one rank."""

    _loader: ClaimsLoader
    _inner: PoolChunks
    _cursor: PoolCursor

    def __next__(self) -> MicroBatches:
        """The next iteration."""
        loader, cursor, follower = self._loader, self._cursor, self._loader.balancer.follower
        loader.balancer.before_draw()
        loader.close_open()
        if loader.overtaken(self):
            raise UnsupportedError(
                "another iterator was made from this loader, and persistent workers serve one at a time: use "
                "persistent_workers=False where the loop peeks into its loader"
            )
        if cursor.finished:
            follower.finish()
            loader.epochs.ended(cursor)
            next(self._inner)
        follower.draw(cursor)
        began_s = loader.balancer.clock()
        self._inner.begin()
        part = follower.drawn(cursor, loader.balancer.clock() - began_s)
        return MicroBatches(loader, self._inner, cursor, part)


class OneByOne:
    """The user's loader where there is nothing to claim: a world of one rank, LBBSP_DISABLE=1."""

    def __init__(self, loader: "DataLoader[Any]") -> None:
        self._loader = loader

    def __len__(self) -> int:
        """Iterations in an epoch."""
        return len(self._loader)

    def __iter__(self) -> Iterator[tuple[Any]]:
        """Iterations of one micro-batch each."""
        return ((batch,) for batch in self._loader)

    def __getattr__(self, name: str) -> Any:
        """The user's loader answers for what it had."""
        return getattr(self.__dict__["_loader"], name)


def _no_iteration(module: Any, inputs: tuple[Any, ...]) -> None:
    if any(isinstance(value, MicroBatches) for value in inputs):
        raise UnsupportedError(f"the model was given a whole iteration: {TWO_LEVELS}")


def cutting_of(bounds: Bounds, rank: int, menu: bool) -> Cutting:
    """What this rank may work at once: at least the largest minimum of any rank, in multiples of the granularity."""
    grain = bounds.granularity
    unit = grain * max(1, math.ceil(int(bounds.min_samples.max()) / grain))
    return Cutting(unit, max(unit, int(bounds.max_samples[rank])), menu)
