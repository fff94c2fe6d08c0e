"""Balanced sizes change only for a predicted gain above threshold and doubt, and then to the best ones."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbbsp.core.balance import LASTS, ONE_ALONE, PROBE_AFTER, UNREST_S, Balance
from lbbsp.core.bounds import Bounds
from lbbsp.core.sizing import Curves, allocate

BOUNDS = Bounds(1000, np.ones(2), np.full(2, 1000))
SEEN = np.ones(2, dtype=bool)


def lines(*slopes):
    return Curves(np.zeros(len(slopes)), np.zeros(len(slopes)), np.array(slopes))


@pytest.mark.parametrize(
    ("slower", "doubt", "changes"),
    [(1.0, 0.0, False), (1.03, 0.0, False), (1.06, 0.0, True), (1.06, 0.05, False), (2.0, 0.05, True)],
)
def test_a_change_must_be_worth_it(slower, doubt, changes):
    balance = Balance(BOUNDS, threshold=0.02)
    curves = lines(1.0, slower)
    balance.update(curves, doubt, SEEN)
    assert balance.sizes.tolist() == (allocate(curves, BOUNDS) if changes else BOUNDS.equal()).tolist()


@pytest.mark.parametrize(("slower", "returns"), [(1.5, False), (1.03, False), (1.015, True), (1.0, True), (0.99, True)])
def test_sizes_are_equal_again_where_the_best_promise_under_half_of_what_a_change_must(slower, returns):
    balance = Balance(BOUNDS, threshold=0.02)
    balance.update(lines(1.0, 1.06), 0.0, SEEN)
    assert balance.sizes.tolist() != BOUNDS.equal().tolist()
    balance.update(lines(1.0, slower), 0.0, SEEN)
    assert (balance.sizes.tolist() == BOUNDS.equal().tolist()) == returns


def test_sizes_return_to_an_equal_split_only_within_todays_bounds():
    balance = Balance(BOUNDS, threshold=0.02)
    balance.update(lines(1.0, 1.06), 0.0, SEEN)
    tight = Bounds(1000, np.ones(2), np.array([1000, 400]))
    balance.rebound(tight)
    balance.update(lines(1.0, 1.0), 0.0, SEEN)
    assert balance.sizes.tolist() == tight.equal().tolist() == [600, 400]


def test_at_threshold_zero_every_gain_counts():
    balance = Balance(BOUNDS, threshold=0.0)
    balance.update(lines(1.0, 1.01), 0.0, SEEN)
    assert balance.sizes.tolist() == [502, 498]


def test_a_rank_at_zero_is_probed_now_and_then_only():
    balance = Balance(Bounds(10, np.zeros(2), np.full(2, 10)), threshold=0.02)
    sizes = []
    for _ in range(3 * PROBE_AFTER):
        balance.update(lines(1.0, 1e6), 0.0, np.array([True, bool(balance.sizes[1])]))
        sizes.append(int(balance.sizes[1]))
    assert 2 <= sum(sizes[1:]) <= 3


def test_a_rank_that_may_have_no_samples_is_never_probed():
    balance = Balance(Bounds(10, np.zeros(2), np.array([10, 0])), threshold=0.02)
    for _ in range(2 * PROBE_AFTER):
        balance.update(lines(1.0, 1.0), 0.0, np.array([True, False]))
    assert balance.sizes.tolist() == [10, 0]


THRESHOLD = 0.02
HALF = 1000 / 2


def promising(share: float, iteration_s: float) -> Curves:
    """Rank 1 slower, so that the best sizes promise so much of an iteration of equal ones."""
    return lines((1 - 2 * share) * iteration_s / HALF, iteration_s / HALF)


def long_equal(iteration_s: float, bounds: Bounds = BOUNDS) -> Balance:
    """A job whose ranks have long been alike."""
    balance = Balance(bounds, threshold=THRESHOLD)
    for _ in range(200):
        balance.update(promising(0.0, iteration_s), 0.0, SEEN)
    return balance


def left_after(balance: Balance, curves: list[Curves], iterations: int = 1) -> int | None:
    """Updates after which sizes are not equal any more; None: they are still."""
    for number, curve in enumerate(curves, 1):
        balance.update(curve, 0.0, SEEN, iterations)
        if not np.array_equal(balance.sizes, BOUNDS.equal()):
            return number
    return None


@pytest.mark.parametrize("iteration_s", [0.03, 0.1, 1.0])
def test_equal_sizes_are_left_for_a_moment_only_where_it_promises_what_moving_sizes_cost_too(iteration_s):
    unrest = UNREST_S / iteration_s
    least = 1 / HALF  # sizes are whole
    assert left_after(long_equal(iteration_s), [promising(THRESHOLD + 0.8 * unrest, iteration_s)] * 3) is None
    assert left_after(long_equal(iteration_s), [promising(THRESHOLD + 1.2 * unrest + least, iteration_s)] * 3) in (1, 2)


@given(
    iteration_s=st.sampled_from([0.01, 0.03, 0.1, 1.0]),
    theta=st.tuples(*[st.floats(0, 5 * HALF)] * 2),
    slower=st.floats(0.5, 0.98),
    granularity=st.sampled_from([1, 10]),
)
def test_what_lasts_is_followed_whatever_moving_sizes_cost(iteration_s, theta, slower, granularity):
    """Whatever fixed costs the ranks have: theirs in samples."""
    bounds = Bounds(1000, np.ones(2), np.full(2, 1000), granularity)
    speed = (np.array(theta) + HALF) / (np.array([slower, 1.0]) * iteration_s)
    curves = Curves(np.zeros(2), np.array(theta) / speed, 1.0 / speed)
    balance, alike = long_equal(iteration_s, bounds), curves.slowed(np.array([1.0 / slower, 1.0]))
    gain = 1 - curves.time_s(allocate(curves, bounds)).max() / iteration_s
    for number in range(int(5 / LASTS)):
        balance.update(alike if number < 10 else curves, 0.0, SEEN)
    assert (balance.sizes.tolist() != [500, 500]) == (gain > THRESHOLD + 1e-3) or abs(gain - THRESHOLD) < 2e-3


def test_what_lasts_is_followed_where_each_second_forecast_promises_too_little():
    """Nothing alone, and usually enough."""
    more, less = promising(0.086, 0.03), promising(0.019, 0.03)
    assert left_after(long_equal(0.03), [more, less] * 100) is not None


@given(st.sampled_from([2, 16, 32]), st.floats(1.05, 1.3), st.sampled_from([0.02, 0.03, 0.05]))
def test_usual_times_follow_by_iterations_however_many_are_told_of_at_once(group, slower, iteration_s):
    curves = lines(iteration_s / HALF, slower * iteration_s / HALF)
    singly, grouped = (
        (left_after(long_equal(iteration_s), [curves] * 600, iterations) or math.inf) * iterations
        for iterations in (1, group)
    )
    assert grouped <= singly + 2 * group


def test_ranks_without_samples_promise_nothing_and_warn_of_nothing():
    bounds = Bounds(10, np.zeros(3), np.full(3, 10), granularity=5)
    balance = Balance(bounds, threshold=THRESHOLD)
    for slower in (1.0, 1.5, 0.7):
        balance.update(lines(1.0, slower, 1.0), 0.0, np.ones(3, dtype=bool))


@pytest.mark.parametrize("iteration_s", [0.02, 0.05])
def test_ranks_that_are_slow_in_turn_promise_nothing_that_lasts(iteration_s):
    gain = THRESHOLD + 0.8 * UNREST_S / iteration_s
    one, other = promising(gain, iteration_s), lines(iteration_s / HALF, (1 - 2 * gain) * iteration_s / HALF)
    assert left_after(long_equal(iteration_s), [one, other] * 200) is None


@pytest.mark.parametrize("iteration_s", [0.03, 0.05, 0.1])
def test_one_iteration_alone_is_believed_only_where_it_promises_much(iteration_s):
    unrest = UNREST_S / iteration_s
    little, much = THRESHOLD + (ONE_ALONE - 1) * unrest, THRESHOLD + (ONE_ALONE + 1) * unrest
    none = promising(0.0, iteration_s)
    assert left_after(long_equal(iteration_s), [promising(little, iteration_s), none] * 3) is None
    assert left_after(long_equal(iteration_s), [promising(little, iteration_s)] * 2) == 2
    assert left_after(long_equal(iteration_s), [promising(much, iteration_s)]) == 1


def test_the_mean_of_several_iterations_is_believed_at_once():
    assert left_after(long_equal(0.05), [promising(0.09, 0.05)], iterations=4) == 1
