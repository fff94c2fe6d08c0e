"""The protocol of claims, attacked by a script: ranks that race, break off, die with a claim, run ahead; resumes.

Each sample of an iteration that was reduced is worked once, whatever happens; what was not reduced does not count.
"""

from collections import Counter as Multiset
from collections.abc import Callable
from random import Random
from typing import TypeVar

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lbbsp.core.parts import WHOLE_PPM, chunk_units, fitting, grain, on_menu, planned_parts
from lbbsp.worker.claiming import Chunking, Claims

T = TypeVar("T")


class Store:
    """Counters by name, as a rendezvous store has them; remembers what was deleted."""

    def __init__(self) -> None:
        self.sums: dict[str, int] = {}
        self.deleted: set[str] = set()

    def counter(self, key: str) -> "StoreCounter":
        return StoreCounter(self, key)


class StoreCounter:
    def __init__(self, store: Store, key: str) -> None:
        self.store, self.key = store, key

    def add(self, units: int) -> int:
        assert self.key not in self.store.deleted, "a claim came after its reduction"
        self.store.sums[self.key] = self.store.sums.get(self.key, 0) + units
        return self.store.sums[self.key]

    def later(self, call: Callable[[], T], delay_s: float) -> Callable[[], T]:
        value = call()
        return lambda: value


class Rank:
    """One rank's walk through iterations: one step() is one event, in any order among ranks."""

    def __init__(self, rank: int, job: "Job", ahead: bool) -> None:
        self.rank, self.job, self.ahead = rank, job, ahead
        self.iteration, self.arrived, self.gone = job.first, False, False
        self.worked: list[int] = []
        self.claims: Claims | None = None

    def step(self) -> None:
        if self.claims is None:
            self._begin()
        elif not self.arrived:
            claim = self.claims.next()
            if claim is None:
                self.arrived = True
                self.job.arrive(self)
            else:
                self.worked += self.job.pool(self.iteration)[slice(*claim)]
                self._ask()

    def _begin(self) -> None:
        sizes, parts = self.job.plan(self.iteration)
        base, start = self.iteration * self.job.batch, int(parts[: self.rank].sum())
        self.worked = [base + place for place in range(start, start + int(parts[self.rank]))]
        chunking = Chunking(len(self.job.pool(self.iteration)), len(sizes), sizes[self.rank] / sizes.sum())
        counter = self.job.store.counter(f"{self.job.nonce}/{self.iteration}")
        self.claims = Claims(counter, chunking)
        self._ask()

    def _ask(self) -> None:
        if self.ahead and self.claims is not None:
            self.claims.ask_within(0.0)


class Job:
    """An incarnation: its ranks race until all is reduced or one is gone."""

    def __init__(self, random: Random, store: Store, nonce: str, first: int, ranks: int, batch: int, total: int):
        self.random, self.store, self.nonce, self.first, self.batch, self.total = (
            random, store, nonce, first, batch, total)  # fmt: skip
        self.reduced: list[int] = []
        self.here: list[Rank] = []
        self.consumed = first
        self.ranks = [Rank(rank, self, random.random() < 0.5) for rank in range(ranks)]

    def plan(self, iteration: int) -> tuple[np.ndarray, np.ndarray]:
        left = min(self.batch, self.total - iteration * self.batch)
        cuts = np.sort(np.random.default_rng([iteration, len(self.ranks)]).integers(0, left + 1, len(self.ranks) - 1))
        sizes = np.diff(np.concatenate([[0], cuts, [left]]))
        return sizes, planned_parts(sizes, [300_000, 0, 900_000, WHOLE_PPM][iteration % 4], 1)

    def pool(self, iteration: int) -> list[int]:
        sizes, parts = self.plan(iteration)
        base = iteration * self.batch
        return list(range(base + int(parts.sum()), base + int(sizes.sum())))

    def arrive(self, rank: Rank) -> None:
        """The collective: it ends when all are there; then the first rank deletes the counter."""
        self.here.append(rank)
        if len(self.here) == len(self.ranks):
            self.reduced += [place for one in self.here for place in one.worked]
            self.store.deleted.add(f"{self.nonce}/{self.consumed}")
            self.consumed += 1
            for one in self.here:
                one.claims, one.arrived, one.iteration = None, False, one.iteration + 1
            self.here = []

    def run(self, leave_at: int | None) -> None:
        """Random events; at one of them a rank dies or breaks off, whatever it holds."""
        for event in range(100_000):
            if self.consumed * self.batch >= self.total:
                return
            able = [rank for rank in self.ranks if not (rank.arrived or rank.gone)]
            if event == leave_at:
                self.random.choice(self.ranks).gone = True
            elif not able:
                return
            else:
                self.random.choice(able).step()


@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 2**32), leaves=st.lists(st.integers(0, 120), max_size=3), batch=st.integers(1, 40))
def test_each_sample_is_reduced_once_whatever_ranks_do(seed: int, leaves: list[int], batch: int) -> None:
    random, store, reduced, first = Random(seed), Store(), [], 0
    total = random.randrange(1, 6 * batch + 1)
    for load, leave_at in enumerate([*leaves, None]):
        job = Job(random, store, f"nonce{load}", first, random.randrange(1, 5), batch, total)
        job.run(leave_at)
        reduced, first = reduced + job.reduced, job.consumed
    assert Multiset(reduced) == Multiset(range(total))


@given(
    sizes=st.lists(st.integers(0, 500), min_size=1, max_size=9),
    beta=st.integers(0, WHOLE_PPM + 5),
    unit=st.integers(1, 8),
    menu=st.booleans(),
)
def test_planned_parts_leave_a_pool_of_at_least_a_unit_or_none(
    sizes: list[int], beta: int, unit: int, menu: bool
) -> None:
    array = np.array(sizes, dtype=np.int64)
    parts = planned_parts(array, beta, unit, menu)
    left = int(array.sum() - parts.sum())
    unit = fitting(unit, int(array.sum()), len(sizes))
    assert left == 0 or left >= unit
    if left:
        assert (parts >= unit).all()
        assert (parts % unit == 0).all()


@given(left=st.integers(1, 10_000), share=st.floats(0, 1), least=st.integers(1, 50), most=st.integers(1, 10_000))
def test_a_chunk_is_never_empty_and_never_more_than_is_left(left: int, share: float, least: int, most: int) -> None:
    for menu in (False, True):
        assert 1 <= chunk_units(left, share, least, most, menu) <= min(left, most)


def test_two_grains_fit_into_the_least_chunk() -> None:
    assert [grain(1, chunk) for chunk in (0, 1, 2, 3, 4, 7, 8, 22, 64)] == [1, 1, 1, 1, 2, 2, 4, 8, 32]
    assert [grain(6, chunk) for chunk in (0, 11, 12, 24, 100)] == [6, 6, 6, 12, 48]


def test_the_menu() -> None:
    assert on_menu(np.arange(1, 14)).tolist() == [1, 2, 3, 4, 4, 6, 6, 8, 8, 8, 8, 12, 12]


def test_a_rank_asks_ahead_only_while_more_is_left_than_all_ranks_next_chunks() -> None:
    store = Store()
    claims, ahead = Claims(store.counter("k"), Chunking(64, 4, 0.25, least=4)), 0
    while (claim := claims.next()) is not None:
        claims.ask_within(0.0)
        if store.sums["k"] > claim[1]:
            assert 64 - claim[1] > 4 * 4, "asked ahead at the end"
            ahead += 1
    assert ahead > 3


def test_a_rank_claims_of_what_is_left_now() -> None:
    """Not of what was left when it claimed last: meanwhile the others have taken most of it."""
    counter = Store().counter("k")
    claims = Claims(counter, Chunking(1000, 2, 0.5))
    counter.add(900)
    claim = claims.next()
    assert claim is not None
    assert claim[0] == 900
    assert claim[1] - claim[0] < 50
    counter.add(1000)
    assert claims.next() is None
