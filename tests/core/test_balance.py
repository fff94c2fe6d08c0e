"""Balanced sizes change only for a predicted gain above threshold and doubt, and then to the best ones."""

import numpy as np
import pytest

from lbbsp.core.balance import PROBE_AFTER, Balance
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
