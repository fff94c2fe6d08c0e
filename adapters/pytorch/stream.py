"""IterableDataset: each rank's own stream, re-batched to the plan.

A rank reads ahead of its draws; what each holds is gathered while gradients travel, so that all know before a draw
who can fill its part. What a rank lacks the others give from what they hold; the epoch ends for all ranks at once
when a whole global batch can't be had any more. Which samples a stream holds is the user's business.
"""

import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from lbbsp.adapters.pytorch.loose import LooseDraws
from lbbsp.adapters.pytorch.planned import cut_to_nothing, worker_settings
from lbbsp.errors import ConfigError, UnsupportedError
from lbbsp.worker.vector import IntArray

if TYPE_CHECKING:
    from lbbsp.adapters.pytorch.balancer import Balancer

log = logging.getLogger(__name__)

SPARE = 1
"""A rank holds this many parts more than an iteration draws, so that a plan that gives it more finds them there."""
CHUNK = 16


class Streamed:
    """Samples of a loader over an IterableDataset, one by one, held until they are taken."""

    def __init__(self, source: Iterator[list[Any]]) -> None:
        self._source = source
        self._held: deque[Any] = deque()
        self.exhausted = False

    def hold(self, samples: int) -> int:
        """Read until so many are held or the stream ends; how many are held."""
        while len(self._held) < samples and not self.exhausted:
            chunk = next(self._source, None)
            if chunk is None:
                self.exhausted = True
            else:
                self._held.extend(chunk)
        return len(self._held)

    def take(self, samples: int) -> list[Any]:
        """The next samples; they are held."""
        return [self._held.popleft() for _ in range(samples)]

    def next_one(self) -> Any:
        """The next sample, which stays: it stands in where an empty batch is to be collated."""
        return self._held[0]


def shares(sizes: IntArray, held: IntArray, least: IntArray) -> IntArray | None:
    """What each rank takes of what it holds, (ranks,): its part where it can, the rest from those with most to spare.

    None where the ranks together hold less than the sizes' sum, or one holds less than its minimum: the joint end.
    """
    lacking = int(sizes.sum() - np.minimum(sizes, held).sum())
    taken = np.minimum(sizes, held)
    if (held < np.maximum(least, 1)).any() or held.sum() < sizes.sum():
        return None
    for rank in np.argsort(-(held - taken), kind="stable"):
        extra = min(lacking, int(held[rank] - taken[rank]))
        taken[rank] += extra
        lacking -= extra
    return taken


class StreamLoader:
    """Stands in for the user's DataLoader over an IterableDataset."""

    def __init__(self, loader: "DataLoader[Any]", balancer: "Balancer") -> None:
        self._loader, self.balancer = loader, balancer
        self._inner = _uncollated(loader)
        self._iterators: weakref.WeakSet[StreamIterator] = weakref.WeakSet()
        self._waits: deque[Callable[[], IntArray]] = deque(maxlen=4)
        self.posts = 0
        """Gathers so far: one a reduction."""
        balancer.at_reduction.append(self._post)

    def __len__(self) -> int:
        """As the user's loader says, where its data set has a length."""
        return len(self._loader)

    def __iter__(self) -> "StreamIterator":
        """Begin an epoch of this rank's stream."""
        self.balancer.before_draw()
        draws = LooseDraws(self.balancer)
        iterator = StreamIterator(self, draws, Streamed(iter(self._inner)))
        self._iterators.add(iterator)
        weakref.finalize(iterator, self.balancer.follower.places.forget, draws.cursor)
        return iterator

    def __getattr__(self, name: str) -> Any:
        """The user's loader answers for what it had."""
        return getattr(self.__dict__["_loader"], name)

    def mean(self, value: Any) -> Any:
        """See Balancer.mean."""
        return self.balancer.mean(value)

    def weight(self, *, valid_items: float) -> None:
        """See Balancer.weight."""
        self.balancer.weight(valid_items=valid_items)

    def state_dict(self) -> dict[str, Any]:
        """Refused: where a stream is, only its data set knows."""
        raise UnsupportedError("an IterableDataset keeps its own place: save and load it with the data set's own means")

    def gathered(self) -> IntArray:
        """What each rank held at the newest reduction, (ranks,)."""
        return self._waits[-1]()

    def gather(self, held: int) -> IntArray:
        """Tell the others here and now what this rank holds; what each holds, (ranks,). All ranks must call."""
        self._waits.append(self.balancer.control.post_gather(held))
        return self.gathered()

    def _post(self) -> None:
        """At each reduction: tell the others what this rank holds."""
        main = self.balancer.follower.places.main
        held = next((iterator.held for iterator in self._iterators if iterator.draws.cursor is main), 0)
        self._waits.append(self.balancer.control.post_gather(held))
        self.posts += 1


class StreamIterator(Iterator[Any]):
    """One epoch of one rank's stream."""

    def __init__(self, loader: StreamLoader, draws: LooseDraws, stream: Streamed) -> None:
        self.draws = draws
        self.held = 0
        self._loader, self._stream = loader, stream
        self._first_post = self._post = loader.posts
        self._taken_since: IntArray = np.zeros(loader.balancer.control.world_size, dtype=np.int64)
        self._draws_since, self._most_draws = 0, 1
        self._ended = False

    def __next__(self) -> Any:
        """This rank's part of the next global batch."""
        if self._ended:
            raise StopIteration
        balancer = self._loader.balancer
        sizes = self.draws.draw()
        began_s = balancer.clock()
        taken = self._share(sizes)
        if taken is None:
            self._end()
            raise StopIteration
        mine = int(taken[balancer.session.rank])
        batch = self._loader.collate_fn(self._stream.take(mine) if mine else [self._stream.next_one()])
        self._hold(taken)
        if not mine:
            batch = cut_to_nothing(batch)
        if self._loader.pin_memory:
            batch = pin_memory(batch)  # type: ignore[no-untyped-call]
        self.draws.drawn(taken, balancer.clock() - began_s)
        return batch

    def _share(self, sizes: IntArray) -> IntArray | None:
        """What each rank takes, by what all held at the newest reduction less what they took since."""
        if self._loader.posts > self._post:
            self._post, self._draws_since = self._loader.posts, 0
            self._taken_since[:] = 0
        self._draws_since += 1
        self._most_draws = max(self._most_draws, self._draws_since)
        if self._post == self._first_post:
            return self._first(sizes)
        least = self._loader.balancer.terms.bounds.min_samples
        taken = shares(sizes, self._loader.gathered() - self._taken_since, least)
        if taken is None:
            taken = shares(sizes, self._gathered_anew(sizes), least)
        if taken is not None:
            self._taken_since += taken
        return taken

    def _gathered_anew(self, sizes: IntArray) -> IntArray:
        """What each rank holds now: at the end, or where an iteration has more draws than those before it had.

        All ranks find at the same draw that the newest gather falls short, so all gather again.
        """
        self._hold(sizes)
        own = self._loader.balancer.follower.own
        own.stop()
        self._taken_since[:] = 0
        held = self._loader.gather(self.held)
        own.start()
        return held

    def _hold(self, sizes: IntArray) -> None:
        part = max(int(sizes[self._loader.balancer.session.rank]), int(sizes.sum()) // len(sizes))
        self.held = self._stream.hold((self._most_draws + SPARE) * part)

    def _first(self, sizes: IntArray) -> IntArray:
        """Before the first reduction nobody knows what the others hold: each must have its part.

        Raises:
            ConfigError: this rank's stream is shorter than that.
        """
        rank = self._loader.balancer.session.rank
        least = max(1, int(sizes[rank]))
        if (have := self._stream.hold(least)) < least:
            raise ConfigError(
                f"rank {rank}'s stream holds {have} samples, its first batch {least}: give each rank at "
                "least one batch, or use a smaller batch size"
            )
        return sizes

    def _end(self) -> None:
        self._ended = True
        self._loader.balancer.follower.places.forget(self.draws.cursor)
        self._loader.balancer.follower.finish()
        if self.held:
            log.info("the streams' joint end leaves %d samples of this rank unused", self.held)


def _uncollated(loader: "DataLoader[Any]") -> "DataLoader[Any]":
    """The user's loader giving lists of samples."""
    return DataLoader(
        loader.dataset,
        batch_size=min(CHUNK, int(loader.batch_size or 1)),
        num_workers=loader.num_workers,
        collate_fn=list,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        generator=loader.generator,
        **worker_settings(loader),
    )
