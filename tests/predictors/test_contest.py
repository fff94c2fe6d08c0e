"""Who has lost least lately: what hurts all alike decides nothing, and chance does not either."""

import numpy as np
import pytest

from lbbsp.predictors.contest import Contest

ALL = np.ones(3, dtype=bool)


def held(losses, among=ALL, **options):
    """In charge after all iterations, and how often that changed; losses (iterations, candidates)."""
    contest = Contest(3, 1, share=0.04, **{"sureness": 2.0, "paired": True} | options)
    charge, changes = np.zeros(1, dtype=np.intp), 0
    for row in losses:
        contest.add(row[:, None], among)
        before, charge = charge, contest.winners(charge, among)
        changes += int(charge[0] != before[0])
    return charge[0], changes


def alike(rng, better, count=300):
    """Losses that vary widely, and alike but for a thousandth; the second one's lie `better` lower."""
    common = rng.exponential(0.3, (count, 1))
    return common + rng.normal(0, 1e-3, (count, 3)) + np.array([0.0, -better, 0.1])


def test_a_small_steady_difference_between_candidates_that_err_alike_is_found_only_in_pairs():
    rng = np.random.default_rng(0)
    losses = alike(rng, 0.003)
    losses[:, 2] = rng.exponential(0.6, len(losses))  # so that the mean of all varies
    assert held(losses)[0] == 1
    assert held(losses, paired=False)[0] == 0


@pytest.mark.parametrize("seed", range(10))
def test_equal_candidates_seldom_change_places(seed):
    assert held(alike(np.random.default_rng(seed), 0.0, 1000))[1] <= 40


def test_who_takes_no_part_wins_nothing_and_keeps_what_is_known_of_it():
    contest = Contest(3, 1, share=0.04, sureness=2.0, paired=True)
    rng, charge = np.random.default_rng(1), np.zeros(1, dtype=np.intp)
    for row in alike(rng, 0.05):
        contest.add(row[:, None], ALL)
    before = contest._loss[1].copy(), contest._variance[1].copy(), contest._covariance[1].copy()
    among = np.array([True, False, True])
    for row in alike(rng, 0.05):
        contest.add(row[:, None], among)
        assert contest.winners(charge, among)[0] != 1
    for kept, now in zip(before, (contest._loss[1], contest._variance[1], contest._covariance[1]), strict=True):
        np.testing.assert_array_equal(kept, now)


def test_who_was_put_behind_must_win_its_place_again():
    contest = Contest(3, 1, share=0.04, sureness=2.0, paired=True)
    rng, charge = np.random.default_rng(2), np.zeros(1, dtype=np.intp)
    for row in alike(rng, 0.05):
        contest.add(row[:, None], ALL)
    assert contest.winners(charge, ALL)[0] == 1
    contest.put_behind(np.array([False, True, False]), charge, 0.01)
    assert contest.winners(charge, ALL)[0] == 0
    for row in alike(rng, 0.05):
        contest.add(row[:, None], ALL)
    assert contest.winners(charge, ALL)[0] == 1
