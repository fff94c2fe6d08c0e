"""Rules 1 and 6 of design.md: sums, bounds, granularity, and the exact minimum of the largest time."""

import numpy as np
import pytest
from brute import best_time_s
from hypothesis import given, settings
from hypothesis import strategies as st

from lbbsp.core.sizing import Bounds, Curves, allocate, fits, short_slices
from lbbsp.errors import BoundsError

TIMES = st.one_of(st.just(0.0), st.floats(1e-6, 1e3), st.sampled_from([0.1, 0.2, 0.3]))


@st.composite
def bounds_st(draw, ranks=6, units=40):
    world = draw(st.integers(1, ranks))
    unit = draw(st.sampled_from([1, 1, 2, 3, 8]))
    low = np.array(draw(st.lists(st.integers(0, 4), min_size=world, max_size=world)))
    extra = np.array(draw(st.lists(st.integers(0, 12), min_size=world, max_size=world)))
    total = draw(st.integers(int(low.sum()), int((low + extra).sum())))
    if total == 0:
        low, total = low + 1, world
    return Bounds(
        min(total, units) * unit if low.sum() <= units else total * unit,
        low * unit,
        (low + extra) * unit,
        unit,
    )


@st.composite
def case_st(draw):
    bounds = draw(bounds_st())
    ranks = bounds.world_size
    rows = [np.array(draw(st.lists(TIMES, min_size=ranks, max_size=ranks))) for _ in range(3)]
    return Curves(*rows), bounds


@settings(max_examples=400, deadline=None)
@given(case_st())
def test_largest_time_is_the_least_possible(case):
    curves, bounds = case
    sizes = allocate(curves, bounds)
    assert fits(sizes, bounds) is None
    assert float(curves.time_s(sizes).max()) == best_time_s(curves, bounds)


@settings(max_examples=200, deadline=None)
@given(case_st(), st.randoms(use_true_random=False))
def test_no_rank_is_favoured_by_its_number(case, random):
    curves, bounds = case
    order = list(range(bounds.world_size))
    random.shuffle(order)
    order = np.array(order)
    moved = Bounds(bounds.global_batch, bounds.min_samples[order], bounds.max_samples[order], bounds.granularity)
    first = curves.time_s(allocate(curves, bounds)).max()
    assert curves.take(order).time_s(allocate(curves.take(order), moved)).max() == first


@given(bounds_st())
def test_equal_split_is_as_equal_as_bounds_allow(bounds):
    sizes = bounds.equal()
    assert fits(sizes, bounds) is None
    line = Curves(np.zeros(len(sizes)), np.zeros(len(sizes)), np.ones(len(sizes)))
    assert sizes.max() == best_time_s(line, bounds)
    assert (bounds.equal() == sizes).all()


def test_equal_split_gives_the_remainder_to_the_first_ranks():
    assert Bounds(100, np.ones(3), np.full(3, 100)).equal().tolist() == [34, 33, 33]


def test_a_rank_too_slow_at_its_minimum_leaves_the_others_balanced():
    curves = Curves(np.zeros(4), np.zeros(4), np.array([1e-3, 1e-3, 2e-3, 100.0]))
    assert allocate(curves, Bounds(101, np.ones(4), np.full(4, 101))).tolist() == [40, 40, 20, 1]


def test_where_curves_are_flat_the_split_stays_equal():
    curves = Curves(np.full(4, 0.5), np.zeros(4), np.full(4, 1e-6))
    assert allocate(curves, Bounds(64, np.ones(4), np.full(4, 64))).tolist() == [16] * 4


def test_ten_thousand_ranks_keep_the_sum():
    rng = np.random.default_rng(1)
    ranks = 10_000
    curves = Curves(np.zeros(ranks), rng.lognormal(-3, 1, ranks), rng.lognormal(-6, 1, ranks))
    bounds = Bounds(ranks * 64, np.full(ranks, 8), np.full(ranks, 256), 8)
    sizes = allocate(curves, bounds)
    assert fits(sizes, bounds) is None
    used = curves.time_s(sizes)[sizes > 8].max()
    one_more = curves.time_s(sizes + 8)[sizes < 256].min()
    assert used <= one_more


def test_hopeless_rounding_still_gives_a_plan():
    curves = Curves(np.zeros(3), np.array([1e9, 1e9, 1.0]), np.array([1e-12, 1e-13, 1e-20]))
    bounds = Bounds(1000, np.ones(3), np.full(3, 998))
    assert fits(allocate(curves, bounds), bounds) is None


def test_curves_that_are_not_finite_are_named():
    with pytest.raises(ValueError, match="rank 1"):
        allocate(Curves(np.zeros(2), np.array([0.0, np.nan]), np.ones(2)), Bounds(4, np.ones(2), np.full(2, 4)))


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (Bounds(96, np.ones(10), np.full(10, 96), 16), "use a granularity of 8"),
        (Bounds(100, np.ones(3), np.full(3, 100), 16), "use a granularity of 10"),
        (Bounds(3, np.ones(4), np.full(4, 3)), "at least 4"),
        (Bounds(300, np.ones(2), np.full(2, 100)), "at most 200"),
        (Bounds(8, np.array([4, 1]), np.array([2, 8])), "rank 0"),
        (Bounds(8, np.array([-1, 1]), np.array([2, 8])), "rank 0"),
        (Bounds(0, np.ones(2), np.ones(2)), "at least 1"),
        (Bounds(8, np.ones(2), np.ones(3)), "each rank"),
        (Bounds(8, np.ones(0), np.ones(0)), "each rank"),
        (Bounds(32, np.array([5, 1]), np.array([6, 32]), 4), "use a granularity of 2"),
    ],
)
def test_impossible_bounds_are_named_with_what_works(bounds, words):
    for call in (bounds.check, bounds.equal):
        with pytest.raises(BoundsError, match=words):
            call()


@given(bounds_st(), st.integers(0, 100))
def test_slices_of_the_short_last_iteration_touch_and_fill_it(bounds, share):
    sizes = bounds.equal()
    remaining = bounds.global_batch * share // 100
    offsets, counts = short_slices(sizes, bounds.global_batch, remaining)
    assert counts.sum() == remaining
    assert (counts >= 0).all()
    assert (offsets == np.cumsum(counts) - counts).all()
    assert (counts <= sizes).all() or share < 100


def test_slices_of_a_whole_iteration_are_the_plan():
    offsets, counts = short_slices(np.array([3, 0, 5]), 8, 8)
    assert (offsets.tolist(), counts.tolist()) == ([0, 3, 3], [3, 0, 5])


@pytest.mark.parametrize(("sizes", "remaining"), [([3, 4], 1), ([4, 4], 9), ([4, 4], -1), ([], 0)])
def test_slices_refuse_what_cannot_be(sizes, remaining):
    with pytest.raises(ValueError):
        short_slices(np.array(sizes, dtype=np.int64), 8, remaining)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([4, 4, 0], "3 sizes"),
        ([4, 6], "add up to 10"),
        ([0, 8], "minimum"),
        ([7, 1], "maximum"),
        ([5, 3], "multiple"),
    ],
)
def test_a_vector_that_breaks_rule_one_is_told_why(sizes, words):
    assert words in str(fits(np.array(sizes), Bounds(8, np.full(2, 1), np.full(2, 6), 2)))
