"""Rests: where sizes have long been equal most messages are left out, and all ranks agree on which."""

import numpy as np
import pytest
from plays import play_resting

from lbbsp.core.bounds import Bounds
from lbbsp.protocol import MOST_TOGETHER
from lbbsp.worker import rest
from lbbsp.worker.channel import held_back
from lbbsp.worker.rest import (
    APART_COSTS,
    CALM_A_REST,
    CALM_AFTER,
    LONG_AFTER,
    LONG_REST_S,
    LONGER,
    MOST_EQUAL,
    NEAR,
    NEVER,
    PACES,
    REST_S,
    SETTLED_AFTER,
    Rests,
)
from lbbsp.worker.vector import Vector, pack, unpack

EQUAL = Bounds(8, np.zeros(2), np.full(2, 8), 1).equal()
OTHER = np.array([5, 3])
SOON_S = 0.01


def calm(drawn: bool = True, reductions: int = MOST_EQUAL) -> Rests:
    """So many reductions with equal sizes, a message after each."""
    rests = Rests(EQUAL)
    follow(rests, EQUAL, reductions, drawn)
    return rests


def follow(rests: Rests, sizes: np.ndarray, reductions: int, drawn: bool = True) -> None:
    for _ in range(reductions):
        rests.reduction(drawn)
        rests.sent(Vector(sizes))


def opened(
    rests: Rests, *, armed: int = 0, left: int = 1000, iteration_s: float = SOON_S, together: int = MOST_TOGETHER
) -> int:
    return rests.after(Vector(EQUAL, rest=armed), left, iteration_s, together)


def test_a_message_opens_a_rest_only_where_the_one_before_let_it() -> None:
    assert opened(calm(), armed=NEVER) == 0
    assert opened(calm(), armed=0) == opened(calm(), armed=3) == MOST_TOGETHER - 1


def test_where_the_plan_after_a_rest_has_not_come_the_next_message_is_not_far() -> None:
    for armed, opens in ((MOST_TOGETHER - 1, 0), (1, 0), (0, MOST_TOGETHER - 1), (NEVER, 0)):
        assert calm().after(Vector(EQUAL, rest=armed), 1000, SOON_S, MOST_TOGETHER, unanswered=True) == opens


def test_nobody_rests_before_sizes_have_long_been_equal_or_when_they_are_no_longer() -> None:
    assert opened(Rests(EQUAL)) == NEVER
    rests = calm()
    rests.sent(Vector(OTHER))
    assert opened(rests) == NEVER
    rests = calm()
    rests.sent(Vector(EQUAL, beta_ppm=500_000))
    assert opened(rests) == NEVER, "parts are claimed"


def test_a_moment_s_other_sizes_are_soon_forgotten_and_lasting_ones_are_not() -> None:
    rests = calm(reductions=2 * MOST_EQUAL)
    follow(rests, OTHER, 1)
    assert not rests.calm, "while they are in force nobody rests"
    follow(rests, EQUAL, 1)
    assert rests.calm
    follow(rests, OTHER, MOST_EQUAL // APART_COSTS + 1)
    follow(rests, EQUAL, CALM_AFTER - 1)
    assert not rests.calm
    follow(rests, EQUAL, 1)
    assert rests.calm


@pytest.mark.parametrize("reductions", [CALM_AFTER, 2 * CALM_AFTER, MOST_EQUAL // 2, MOST_EQUAL, 10 * MOST_EQUAL])
def test_a_rest_lasts_no_longer_than_a_share_of_the_calm_before_it(reductions: int) -> None:
    most = min(MOST_TOGETHER, reductions // CALM_A_REST)
    assert 1 + opened(calm(reductions=reductions)) == most


def test_reductions_of_rests_are_calm_as_well_and_what_ends_in_one_with_a_change_counts_once() -> None:
    rests = calm(reductions=CALM_AFTER)
    for _ in range(MOST_EQUAL - CALM_AFTER):
        rests.reduction(drawn=True)
    rests.sent(Vector(EQUAL))
    assert opened(rests) == MOST_TOGETHER - 1
    for _ in range(MOST_TOGETHER):
        rests.reduction(drawn=True)
    rests.sent(Vector(OTHER))
    follow(rests, EQUAL, 1)
    assert rests.calm, "equal sizes were in force all the time"


def test_loops_with_several_reductions_to_a_draw_do_not_rest() -> None:
    assert opened(calm(drawn=False)) == NEVER
    rests = calm()
    rests.reduction(drawn=False)
    assert opened(rests) == NEVER


@pytest.mark.parametrize("left", range(10))
def test_the_last_reduction_of_an_epoch_has_a_message(left: int) -> None:
    reductions = 1 + opened(calm(), left=left)
    assert reductions <= max(1, left)


@pytest.mark.parametrize("iteration_s", [0.05, 0.1, 0.15, 0.3, 0.5, 10.0])
def test_a_rest_and_what_it_holds_back_is_short(iteration_s: float) -> None:
    assert iteration_s * opened(calm(), iteration_s=iteration_s) <= REST_S


def test_rests_grow_longer_while_no_size_changes_and_a_change_makes_them_short_again() -> None:
    rests = calm()
    lengths = [opened(rests, iteration_s=0.1) for _ in range(LONG_AFTER + 1)]
    assert set(lengths[:-1]) == {round(REST_S / 0.1) - 1}
    assert lengths[-1] == round(LONG_REST_S / 0.1) - 1
    rests.sent(Vector(EQUAL.copy()))
    assert opened(rests, iteration_s=0.1) == lengths[-1], "the same again"
    follow(rests, OTHER, 1)
    follow(rests, EQUAL, CALM_AFTER)
    assert opened(rests, iteration_s=0.1) == lengths[0]


def test_an_iteration_that_takes_far_longer_makes_rests_short_again() -> None:
    rests = calm()
    for _ in range(LONG_AFTER + 1):
        long = opened(rests, iteration_s=0.05)
    assert 0.05 * long > REST_S
    slow_s = 1.01 * LONGER * 0.05
    assert slow_s * opened(rests, iteration_s=slow_s) <= REST_S
    assert 0.05 * opened(rests, iteration_s=0.05) <= REST_S


def test_a_pace_that_jitters_as_it_has_of_late_is_no_news_and_one_that_jitters_more_is() -> None:
    rests = calm()
    for _ in range(PACES):
        lengths = [opened(rests, iteration_s=iteration_s) for iteration_s in (0.04, 0.08)]
    assert lengths == [MOST_TOGETHER - 1, int(LONG_REST_S / 0.08) - 1]
    worse_s = 1.01 * LONGER * 0.08
    assert worse_s * opened(rests, iteration_s=worse_s) <= REST_S
    for _ in range(PACES + LONG_AFTER):
        opened(rests, iteration_s=0.04)
    assert 0.08 * opened(rests, iteration_s=0.08) <= REST_S, "longer ago than is remembered"


def test_sizes_that_are_nearly_equal_rest_too_and_others_do_not() -> None:
    equal = Bounds(200, np.zeros(2), np.full(2, 200), 1).equal()
    apart = np.array([1, -1])
    for samples, rested in ((int(NEAR * 100), True), (int(NEAR * 100) + 1, False)):
        rests = Rests(equal)
        follow(rests, equal + samples * apart, MOST_EQUAL)
        assert rests.calm is rested


def test_sizes_that_follow_a_neighbour_end_the_rests_though_they_stay_nearly_equal() -> None:
    near = Bounds(200, np.zeros(2), np.full(2, 200), 1).equal()
    rests = Rests(near)
    for phase in range(40):
        sizes = near + (5 if phase % 2 else -5) * np.array([1, -1])
        for _ in range(SETTLED_AFTER // 2):
            follow(rests, sizes, 1)
            assert not rests.calm


def test_what_was_counted_of_rests_is_forgotten_while_there_are_none() -> None:
    rests = calm()
    for _ in range(LONG_AFTER + 1):
        opened(rests, iteration_s=0.1)
    opened(rests, iteration_s=0.1, together=1)
    assert 0.1 * opened(rests, iteration_s=0.1) <= REST_S


@pytest.mark.parametrize("iteration_s", [0.0, -1.0, float("nan")])
def test_an_unknown_pace_gives_no_rest(iteration_s: float) -> None:
    assert opened(calm(), iteration_s=iteration_s) == NEVER


def test_a_manager_that_takes_one_report_at_a_time_gives_no_rest() -> None:
    assert opened(calm(), together=1) == NEVER
    assert opened(calm(), together=3) == 2


@pytest.mark.parametrize("length", range(1, MOST_TOGETHER))
def test_reports_leave_at_the_last_reduction_of_a_rest_as_many_as_were_said(length: int) -> None:
    newest, groups, held = Vector(EQUAL, sequence=10, rest=length), [], 0
    for sequence in range(11, 11 + 4 * (length + 1)):
        held += 1
        if not held_back(newest, sequence):
            groups.append(held)
            held = 0
        if sequence > newest.holds_through:
            newest = Vector(EQUAL, sequence=sequence, rest=length)
    assert max(groups) == length + 1


def test_the_message_says_how_long_the_rest_is() -> None:
    for length in (NEVER, 0, 7):
        assert unpack(pack(Vector(EQUAL, sequence=3, rest=length), ()))[0].rest == length


@pytest.mark.parametrize("group", range(4))
def test_random_schedules_that_rest_keep_all_ranks_on_the_same_plan(group: int, monkeypatch) -> None:
    monkeypatch.setattr(rest, "CALM_AFTER", 3)
    monkeypatch.setattr(rest, "CALM_A_REST", 1)
    results = [play_resting(seed) for seed in range(10 * group, 10 * group + 10)]
    assert all(result.iterations > 0 for result in results)
    assert sum(result.rested for result in results) > 0
    assert sum(result.plan_changes for result in results) > 0
    assert sum(result.faults_effective for result in results) > 0
    assert max(result.together for result in results) > 2
