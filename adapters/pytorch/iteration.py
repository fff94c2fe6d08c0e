"""One iteration of a loop that claims: the micro-batches of this rank, and the one reduction at their end."""

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from lbbsp.adapters.pytorch.planned import cut_to_nothing
from lbbsp.errors import ConfigError, UnsupportedError
from lbbsp.worker.claiming import Claims
from lbbsp.worker.cursor import Part
from lbbsp.worker.homes import Interval
from lbbsp.worker.pool import USUAL_CHUNKS, PoolCursor

if TYPE_CHECKING:
    from lbbsp.adapters.pytorch.claims import ClaimsLoader, PoolChunks

AHEAD_WORTH = 0.01
"""A claim is asked for ahead where the answer takes longer than this part of a chunk's work ..."""
SOONER, TRIPS = 0.85, 3
"""... at this part of the expected time of the micro-batch under way, so many answers before."""

TWO_LEVELS = (
    "with claims=True each item of the loader is an iteration, itself a loop over micro-batches: write\n"
    "    for chunks in loader:\n"
    "        for x, y in chunks:\n"
    "            loss_fn(model(x), y).backward()\n"
    "        optimizer.step()\n"
    "        optimizer.zero_grad()"
)


class MicroBatches:
    """What the loader gives for one iteration; loop over it once, to its end.

    Args:
        loader: the rank's.
        source: of samples.
        cursor: at this iteration.
        part: planned.
    """

    def __init__(self, loader: "ClaimsLoader", source: "PoolChunks", cursor: PoolCursor, part: Part) -> None:
        self._loader, self._balancer = loader, loader.balancer
        self._source, self._cursor, self._part = source, cursor, part
        self._claims_here = cursor.claims or loader.accumulation.always
        self._begun = self._ended = self._closed = self._broken = False
        self._first_backward = self._newest_backward = self._balancer.backwards
        self._share = 0.0
        self._planned = self._claimed = self._batches = self._weighed = 0
        self._items = self._input_s = 0.0

    @property
    def under_way(self) -> bool:
        """Whether the loop is among its micro-batches."""
        return self._begun and not self._ended

    def __iter__(self) -> Iterator[Any]:
        """The micro-batches."""
        if self._begun:
            raise UnsupportedError("an iteration's micro-batches are given once: loop over them once")
        self._begun = True
        return self._work()

    def __getitem__(self, key: Any) -> NoReturn:
        """Not a batch."""
        raise UnsupportedError(TWO_LEVELS)

    def __getattr__(self, name: str) -> NoReturn:
        """Not a batch."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise UnsupportedError(f"an iteration has no .{name}: {TWO_LEVELS}")

    def weigh(self, valid_items: float) -> bool:
        """Weigh the micro-batch under way by its valid items; False where all ranks have one batch each."""
        if not (self._claims_here and self.under_way):
            return False
        if not valid_items >= 0:
            raise ConfigError(f"valid_items {valid_items} is no count: give the number of items, 0 or more")
        self._items += valid_items
        self._weighed += 1
        self._balancer.weigh_share(valid_items / self._part.global_samples)
        return True

    def close(self) -> None:
        """Hand DDP its part back; what was not worked to its end moves no parameter."""
        if self._closed or not self._begun:
            return
        self._closed = True
        self._loader.accumulation.end()
        self._source.drop()
        if self._ended or self._balancer.backwards == self._first_backward:
            return
        if self._claims_here:
            self._broken = True
            self._loader.accumulation.forget()
        else:
            self._cursor.reduced = self._cursor.newest + 1

    def leave(self) -> None:
        """The loop is done with this iteration.

        Raises:
            UnsupportedError: it has not worked it to its end.
        """
        self.close()
        if self._broken:
            raise UnsupportedError(
                "the loop left an iteration before its last micro-batch: its gradients were not averaged and were "
                "dropped. Work the inner loop to its end on every rank, and break in the outer loop"
            )

    def _work(self) -> Generator[Any, None, None]:
        self._loader.close_open()
        self._loader.open = self
        self._first_backward = self._balancer.backwards
        if self._claims_here:
            self._loader.accumulation.begin()
        try:
            for batch, samples in self._batches_of_rank():
                self._newest_backward = self._balancer.backwards
                self._use(samples)
                yield batch
                self._require_backward(samples)
            if self._claims_here:
                self._reduce()
            self._cursor.reduced = self._cursor.newest + 1
            self._ended = True
        finally:
            self.close()

    def _batches_of_rank(self) -> Iterator[tuple[Any, int]]:
        """The planned part, then what is claimed."""
        claims = self._claims() if self._claims_here else None
        if self._part.samples or not self._claims_here:
            self._planned = self._part.samples
            yield from self._worked(self._cursor.planned(), claims)
        asked_s = self._balancer.clock()
        while claims is not None and (claim := claims.next()) is not None:
            intervals = self._cursor.claimed(*claim)
            self._claimed += _samples(intervals)
            yield from self._worked(intervals, claims, self._balancer.clock() - asked_s)
            asked_s = self._balancer.clock()

    def _claims(self) -> Claims | None:
        """This rank's claims; None where nothing is left to claim."""
        chunking = self._cursor.chunking()
        return self._loader.claims_of(self._name(), chunking) if chunking.units else None

    def _worked(
        self, intervals: list[Interval], claims: Claims | None, waited_s: float = 0.0
    ) -> Iterator[tuple[Any, int]]:
        """One micro-batch; where the store is slow, the next claim is made by its end."""
        loader, samples, began_s = self._loader, _samples(intervals), self._balancer.clock()
        batch = self._fetch(intervals)
        known = loader.micro.sample_s > 0.0 or self._claimed > 0  # never at the start of a part whose end nobody knows
        if claims is not None and known and self._store_is_slow():
            expected_s = samples * loader.micro.sample_s
            claims.ask_within(SOONER * expected_s - TRIPS * loader.counters.latency_s)
        yield batch, samples
        if loader.pace.at_once:
            loader.micro.worked(samples, self._balancer.clock() - began_s, waited_s)

    def _store_is_slow(self) -> bool:
        """Whether its answer takes longer than another thread's help costs, against a usual chunk's work."""
        totals = self._balancer.follower.totals
        chunk_s = totals.own_time_s / max(1, totals.iterations) / USUAL_CHUNKS
        return self._loader.counters.latency_s > AHEAD_WORTH * chunk_s

    def _name(self) -> str:
        """Of the counter: no other iteration's, in this incarnation or an earlier one."""
        follower, cursor = self._balancer.follower, self._cursor
        return f"{follower.hello.incarnation}/{follower.reductions}/{cursor.epoch.key}.{cursor.newest}"

    def _fetch(self, intervals: list[Interval]) -> Any:
        self._loader.pace()
        began_s = self._balancer.clock()
        first = self._cursor.newest * self._cursor.epoch.global_batch
        batch = self._source.take(intervals or [(first, first + 1)])
        self._input_s += self._balancer.clock() - began_s
        return batch if intervals else cut_to_nothing(batch)

    def _use(self, samples: int) -> None:
        """Gradients from now on are of so many samples."""
        self._batches += 1
        follower = self._balancer.follower
        if self._cursor is follower.places.main:
            planned, claimed = follower.claimed
            first = self._batches == 1 and self._planned > 0
            follower.claimed = (planned + samples, claimed) if first else (planned, claimed + samples)
            self._balancer.use(replace(self._part, samples=samples))

    def _require_backward(self, samples: int) -> None:
        """A loop that asks on without a backward pass has one level, skips, or draws ahead."""
        if self._balancer.backwards == self._newest_backward:
            raise UnsupportedError(
                f"a micro-batch of {samples} samples has had no backward pass when the next one was asked for: each "
                f"needs its own, before the next; {TWO_LEVELS}"
            )

    def _reduce(self) -> None:
        """The mean over ranks, once; inside no_sync() later."""
        self._tell()
        self._loader.micro.end()
        self._balancer.follower.fixed_s = self._loader.micro.fixed_s
        accumulation, balancer = self._loader.accumulation, self._balancer
        if accumulation.reduces:
            counts = [self._items, float(self._weighed), float(self._batches)]
            accumulation.reduce(counts, self._normaliser, balancer.reducing)
            self._loader.claims_reduced()
            balancer.follower.reduced()
        balancer.rest(self._share)

    def _tell(self) -> None:
        """The iteration's account: what was worked, planned and claimed."""
        part, input_s = self._cursor.undone[-1]
        worked = self._planned + self._claimed
        self._cursor.undone[-1] = (replace(part, samples=worked), input_s + self._input_s)
        self._share = worked / part.global_samples

    def _normaliser(self, sums: list[float]) -> float:
        """What all ranks' weights add up to, from the sums of items, weighed micro-batches and micro-batches."""
        items, weighed, batches = sums
        if not weighed or self._balancer.sums:
            return 1.0
        if weighed != batches:
            raise UnsupportedError(
                f"{int(weighed)} of the iteration's {int(batches)} micro-batches were weighed by valid items: call "
                "weight() in each, or in none"
            )
        self._share = self._items / items if items else 0.0
        return items / self._part.global_samples if items else 1.0


def _samples(intervals: list[Interval]) -> int:
    return sum(stop - start for start, stop in intervals)
