"""Do no harm: back to equal sizes where they would have won, and out again where balanced ones would."""

import numpy as np
import pytest

from lbbsp.core.harm import WINDOW, DoNoHarm


def judge(harm, balanced_s, equal_s, times=1):
    return [harm.judge(np.array([balanced_s, 0.1]), np.array([equal_s, np.nan])) for _ in range(times)]


@pytest.fixture
def harm():
    return DoNoHarm()


def test_balanced_sizes_stay_while_they_win(harm):
    assert not any(judge(harm, 0.9, 1.0, 500))
    assert harm.balanced
    assert harm.saved_share() == pytest.approx(0.1)


@pytest.mark.parametrize("balanced_s", [0.998, 1.003, 1.008])
def test_sizes_that_bring_next_to_nothing_end_with_a_full_window_and_not_before(harm, balanced_s):
    assert not any(judge(harm, balanced_s, 1.0, WINDOW - 1))
    assert any(judge(harm, balanced_s, 1.0, 1))
    assert not any(judge(harm, balanced_s, 1.0, 500)), "nor do they come back for it"


def test_sizes_that_bring_little_but_more_than_changes_cost_stay(harm):
    assert not any(judge(harm, 0.992, 1.0, 500))


def test_sizes_that_were_equal_all_the_time_are_not_given_up(harm):
    assert not any(judge(harm, 1.0, 1.0, 500))
    assert not any(judge(harm, 0.95, 1.0, 5)), "so that the next step is followed at once"
    assert harm.balanced


def test_what_ended_for_bringing_nothing_comes_back_as_soon_as_it_would_win(harm):
    judge(harm, 0.9, 1.0, 1)
    judge(harm, 1.0, 1.0, WINDOW)
    judge(harm, 0.999, 1.0, WINDOW)
    assert not harm.balanced
    assert any(judge(harm, 0.66, 1.0, 5)), "a neighbour for good"
    judge(harm, 0.999, 1.0, WINDOW)
    assert not harm.balanced
    assert any(judge(harm, 0.66, 1.0, 5)), "nothing was lost, so no more is asked"


def test_a_small_lasting_loss_ends_balanced_sizes_within_the_window(harm):
    assert any(judge(harm, 1.03, 1.0, WINDOW))
    assert not harm.balanced


def test_a_large_loss_ends_them_before_the_window_is_full(harm):
    assert any(judge(harm, 2.0, 1.0, 2))


def test_shadow_plans_that_win_bring_them_back_within_the_window(harm):
    judge(harm, 2.0, 1.0, 1)
    assert not harm.balanced
    assert any(judge(harm, 0.7, 1.0, WINDOW))
    assert harm.balanced


def until_back(harm, balanced_s):
    """Iterations of winning shadow plans until balanced sizes come back, after a loss."""
    judge(harm, 1.0, 1.0, WINDOW)
    judge(harm, 1.6, 1.0, 1)
    assert not harm.balanced
    waited = 0
    while not harm.balanced:
        judge(harm, balanced_s, 1.0)
        waited += 1
        assert waited < 2000
    return waited


def test_each_return_asks_more_of_the_next_try_and_time_forgives(harm):
    waits = [until_back(harm, 0.9) for _ in range(4)]
    assert waits[3] > waits[0]
    assert until_back(harm, 0.5) < WINDOW, "a large gain is still followed"
    judge(harm, 1.0, 1.0, 2000)
    assert until_back(harm, 0.9) == pytest.approx(waits[0], abs=2)


def test_iterations_without_times_are_no_evidence(harm):
    assert not harm.judge(np.array([np.nan]), np.array([np.nan]))
    assert harm.saved_share() == 0.0


@pytest.mark.parametrize("longest", [5.0, 100.0, 1e6])
def test_one_pause_however_long_does_not_end_balanced_sizes_that_win(harm, longest):
    judge(harm, 0.8, 1.0, WINDOW)
    assert not any(judge(harm, 1.5 * longest, longest))
    assert not any(judge(harm, 0.8, 1.0, WINDOW))
    assert harm.balanced


@pytest.mark.parametrize("balanced_s", [0.97, 1.03, 0.999])
def test_several_iterations_at_once_count_as_so_many(balanced_s):
    together, singly = DoNoHarm(), DoNoHarm()
    for _ in range(20):
        together.judge(np.array([balanced_s]), np.array([1.0]), 7)
        judge(singly, balanced_s, 1.0, 7)
    assert together.balanced == singly.balanced
    assert together.saved_share() == pytest.approx(singly.saved_share())


@pytest.mark.parametrize("longest", [5.0, 10.0, 40.0])
def test_one_pause_among_several_iterations_at_once_ends_no_equal_sizes(harm, longest):
    judge(harm, 1.6, 1.0, 1)
    assert not harm.balanced
    judge(harm, 1.0, 1.0, WINDOW)
    mean = (7.0 + longest) / 8.0
    assert not harm.judge(np.array([0.8 * mean]), np.array([mean]), 8)


def test_lasting_slowness_counts_however_many_iterations_come_at_once(harm):
    judge(harm, 1.6, 1.0, 1)
    judge(harm, 1.0, 1.0, WINDOW)
    assert any(harm.judge(np.array([1.33]), np.array([2.0]), 8) for _ in range(6))
