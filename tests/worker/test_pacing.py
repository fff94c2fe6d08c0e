"""Rule 3: rank 0's grace is at most 1 % of an iteration, and none where plans never come in time."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbbsp.worker.pacing import GRACE_SHARE, PATIENCE, REMEMBERED, TRUSTED, Pacing

ITERATION_S = 0.1
LATE = st.one_of(st.floats(-0.2, 0.2), st.just(math.inf))


def paced(iteration_s: float = ITERATION_S, late_s: list[float] | None = None) -> Pacing:
    pacing = Pacing()
    for number in range(50):
        pacing.event(number * iteration_s)
        pacing.reduced(number * iteration_s + iteration_s / 10)
    for one in late_s or []:
        pacing.arrived(one)
    return pacing


@given(
    iteration_s=st.floats(1e-3, 10),
    late_s=st.lists(LATE, max_size=3 * REMEMBERED),
    wanted_s=st.floats(0, 20),
    reduced_s=st.floats(0, 10),
    tail_s=st.floats(0, 5),
)
def test_nothing_is_held_back_by_more_than_1_percent_of_an_iteration(
    iteration_s: float, late_s: list[float], wanted_s: float, reduced_s: float, tail_s: float
) -> None:
    """Beyond the moment when the draw wants the sizes, or when it usually would."""
    pacing = paced(iteration_s, late_s)
    most_s = GRACE_SHARE * iteration_s * 1.0001
    assert 0 <= pacing.grace_s <= most_s
    wanted = pacing.deadline_s(0.0, reduced_s, wanted_s, tail_s)
    assert wanted <= max(wanted_s, reduced_s) + most_s
    unwanted = pacing.deadline_s(0.0, reduced_s, None, tail_s)
    assert reduced_s + tail_s <= unwanted <= reduced_s + tail_s + most_s
    assert wanted <= unwanted


@pytest.mark.parametrize("late_s", [math.inf, 10.0, 2 * GRACE_SHARE * ITERATION_S])
def test_no_grace_where_plans_never_come_in_time(late_s: float) -> None:
    assert paced(late_s=[late_s] * PATIENCE).grace_s == 0.0
    assert paced(late_s=[late_s] * 100).grace_s == 0.0


def test_a_few_late_plans_do_not_end_the_patience() -> None:
    assert paced(late_s=[math.inf] * (PATIENCE - 1)).grace_s > 0
    assert paced(late_s=[0.0005] * 10 + [math.inf] * 10).grace_s > 0


def test_grace_comes_back_with_plans_that_come_in_time() -> None:
    pacing = paced(late_s=[math.inf] * 100)
    for _ in range(REMEMBERED):
        pacing.arrived(0.0002)
    assert pacing.grace_s > 0.0002


def test_grace_is_no_more_than_plans_need() -> None:
    pacing = paced(iteration_s=1.0, late_s=[0.0002] * REMEMBERED)
    assert 0.0002 <= pacing.grace_s < 0.002
    assert paced(iteration_s=1.0, late_s=[-0.1] * REMEMBERED).grace_s < 0.001


def test_before_the_first_iteration_is_known_there_is_no_grace() -> None:
    assert Pacing().grace_s == 0.0


def test_while_the_reduction_is_under_way_rank_0_is_patient() -> None:
    """No draw can want the sizes then; a slow peer may hold the reduction up."""
    assert paced().deadline_s(5.0, None, None, 0.0) >= 6.0


def test_a_pause_does_not_raise_what_counts_as_1_percent() -> None:
    pacing = paced()
    pacing.event(50 * ITERATION_S + 3600.0)
    assert pacing.iteration_s < 1.5 * ITERATION_S


@given(late_s=st.lists(LATE, max_size=3 * REMEMBERED))
def test_plans_are_prompt_once_so_many_in_a_row_have_come(late_s: list[float]) -> None:
    newest = late_s[-REMEMBERED:]
    assert paced(late_s=late_s).prompt == (len(newest) >= TRUSTED and all(map(math.isfinite, newest)))


def test_a_pause_of_the_loop_says_nothing_of_its_pace() -> None:
    pacing = paced()
    pacing.event(50 * ITERATION_S + 60.0, paused_s=60.0 - 0.1 * ITERATION_S)
    assert pacing.longest_s == pytest.approx(1.1 * ITERATION_S)
    pacing.event(51 * ITERATION_S + 60.0, paused_s=9.0)
    assert 0.0 < pacing.longest_s <= 1.1 * ITERATION_S, "never below nothing"


def test_a_slow_iteration_is_told_of_whoever_was_slow() -> None:
    pacing = paced()
    pacing.event(52 * ITERATION_S)
    assert pacing.longest_s == pytest.approx(3 * ITERATION_S)
