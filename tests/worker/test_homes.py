"""Rule 5 at the margin: homes and sizes share out each iteration exactly, and others' changes don't move a home."""

import itertools

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from lbbsp.worker.homes import Homes, portions, split

Interval = tuple[int, int]


def positions(intervals: list[Interval]) -> list[int]:
    return [at for start, stop in intervals for at in range(start, stop)]


@st.composite
def shared(draw: st.DrawFn, ranks: int, total: int) -> np.ndarray:
    """Counts of so many ranks with this sum; zeros are common."""
    cuts = sorted(draw(st.lists(st.integers(0, total), min_size=ranks - 1, max_size=ranks - 1)))
    return np.diff([0, *cuts, total])


@st.composite
def cases(draw: st.DrawFn, vectors: int) -> list[np.ndarray]:
    ranks, total = draw(st.integers(1, 7)), draw(st.integers(0, 60))
    return [draw(shared(ranks, total)) for _ in range(vectors)]


@given(cases(2))
def test_every_position_is_taken_exactly_once(case: list[np.ndarray]) -> None:
    homes, sizes = case
    taken = [positions(portions(homes, sizes, rank)) for rank in range(len(homes))]
    assert [len(one) for one in taken] == sizes.tolist()
    assert sorted(itertools.chain(*taken)) == list(range(int(homes.sum())))


@given(cases(2))
def test_a_rank_takes_of_its_home_what_it_can_from_the_start_on(case: list[np.ndarray]) -> None:
    homes, sizes = case
    for rank, begin in enumerate(np.cumsum(homes) - homes):
        kept = min(int(homes[rank]), int(sizes[rank]))
        assert positions(portions(homes, sizes, rank))[:kept] == list(range(int(begin), int(begin) + kept))


@given(cases(3), st.data())
def test_a_change_of_other_ranks_sizes_does_not_move_what_a_rank_keeps_of_its_home(
    case: list[np.ndarray], data: st.DataObject
) -> None:
    homes, before, after = case
    rank = data.draw(st.integers(0, len(homes) - 1))
    assume(len(homes) > 1)
    others = data.draw(shared(len(homes) - 1, int(before.sum() - before[rank])))
    after = np.insert(others, rank, before[rank])
    own_home = set(range(int(homes[:rank].sum()), int(homes[: rank + 1].sum())))
    kept = [set(positions(portions(homes, sizes, rank))) & own_home for sizes in (before, after)]
    assert kept[0] == kept[1]


@given(cases(1))
def test_at_home_nobody_takes_of_others(case: list[np.ndarray]) -> None:
    (homes,) = case
    for rank in range(len(homes)):
        assert len(portions(homes, homes, rank)) == (homes[rank] > 0)


INTERVALS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)).map(lambda one: (one[0], sum(one))), max_size=6)


@given(INTERVALS, st.integers(1, 9))
def test_dealing_out_keeps_order_and_differs_by_one_at_most(intervals: list[Interval], parts: int) -> None:
    dealt = split(intervals, parts)
    counts = [len(positions(part)) for part in dealt]
    assert len(dealt) == parts
    assert positions([interval for part in dealt for interval in part]) == positions(intervals)
    assert max(counts) - min(counts) <= 1


@given(cases(1), st.lists(st.integers(0, 2**32), max_size=40))
def test_homes_keep_their_sum_and_follow_the_long_run(case: list[np.ndarray], seeds: list[int]) -> None:
    (start,) = case
    homes, total = Homes(start), int(start.sum())
    for seed in seeds:
        sizes = np.random.default_rng(seed).multinomial(total, np.full(len(start), 1 / len(start)))
        now = homes.follow(sizes)
        assert now.sum() == total
        assert (now >= 0).all()


def test_homes_reach_sizes_that_stay() -> None:
    homes, sizes = Homes(np.array([50, 50])), np.array([80, 20])
    for _ in range(30):
        now = homes.follow(sizes)
    assert np.abs(now - sizes).max() <= 1


def test_homes_stay_while_sizes_only_flicker() -> None:
    homes = Homes(np.array([50, 50]))
    for turn in range(40):
        now = homes.follow(np.array([50, 50]) + (1 if turn % 2 else -1) * np.array([2, -2]))
        assert now.tolist() == [50, 50]
