"""What the next incarnation or the next manager still knows of a job, and when it is forgotten; with a real journal.

Numbers are those of the list in test_incarnations.py.
"""

import numpy as np
import pytest
from incarnations import Incarnation, X, follows_speeds

from lbbsp.service.journal_records import encode


def test_4_half_an_iteration_is_never_taken_up(world):
    first = Incarnation(world, "first").join()
    first.steps(10)
    world.say(first.report_of(1))
    world.pass_s(2.0)
    whole = world.truths[-1]
    world.kill()
    assert encode(world.table.past.jobs["j"].state) == whole
    first.join()
    world.say(first.report_of(0))
    first.iteration += 1
    assert first.steps(2).based_on_iteration == 12


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("gathering", [False, True])
def test_6_all_say_bye_before_or_while_the_next_gather(world, killed, gathering):
    first = Incarnation(world, "first").join()
    first.steps(10)
    second = Incarnation(world, "second")
    if gathering:
        second.hello(0)
    for rank in range(2):
        first.bye(rank)
    world.pass_s(5.0)
    if killed:
        world.kill()
    second.join()
    assert follows_speeds(second.steps(1), second.machines)


def test_6_a_job_that_ended_is_forgotten_soon(world):
    first = Incarnation(world, "first").join()
    first.steps(10)
    for rank in range(2):
        first.bye(rank)
    world.pass_s(700.0)
    assert world.table.past.jobs == {}
    assert world.table.jobs == {}
    world.kill()
    assert world.table.past.jobs == {}
    assert world.journal.records() == []


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(
    "machines", [("fast", "slow"), ("slow",), ("fast", "usual", "slow", "other"), ("fast", "slow", "usual")]
)
def test_7_what_was_learnt_follows_the_machine_through_any_change_of_the_world(world, killed, machines):
    first = Incarnation(world, "first", ("slow", "fast", "usual")).join()
    first.steps(20)
    if killed:
        world.pass_s(2.0)
        world.kill()
    second = Incarnation(world, "second", machines).join()
    live = world.table.jobs["j"].live
    known = [name in first.machines for name in machines]
    last = live.sizer._forecaster.last
    assert (np.isfinite(last) == known).all()
    plan = second.steps(1)
    assert sum(plan.sizes) == X
    assert follows_speeds(second.steps(3), machines)


def test_7_a_machine_that_was_away_for_an_incarnation_is_known_when_it_is_back(world):
    Incarnation(world, "first", ("slow", "fast", "usual")).join().steps(20)
    second = Incarnation(world, "second", ("fast", "slow")).join()
    second.steps(5)
    third = Incarnation(world, "third", ("usual", "fast", "slow")).join()
    assert np.isfinite(world.table.jobs["j"].live.sizer._forecaster.last).all()
    assert follows_speeds(third.steps(1), third.machines)


def test_7_ranks_that_share_a_device_name_are_matched_in_order_and_the_absent_one_is_kept(world):
    Incarnation(world, "first", ("slow", "fast", "fast")).join().steps(20)
    Incarnation(world, "second", ("fast", "slow")).join().steps(5)
    third = Incarnation(world, "third", ("fast", "slow", "fast", "usual")).join()
    known = np.isfinite(world.table.jobs["j"].live.sizer._forecaster.last)
    assert known.tolist() == [True, True, True, False]
    assert follows_speeds(third.steps(3), third.machines)


def test_9_the_same_incarnation_with_other_bounds_keeps_what_it_learnt_and_the_bounds(world):
    first = Incarnation(world, "first").join()
    first.steps(10)
    world.pass_s(2.0)
    world.kill()
    first.fields["max_samples"] = 80
    first.join()
    assert first.steps(1).sizes == (40, 80)


def test_a_silent_job_is_forgotten_by_the_table_and_by_the_journal(world):
    Incarnation(world, "first").join().steps(3)
    world.pass_s(world.table.forget_after_s + 2.0)
    assert world.table.jobs == {}
    world.pass_s(2.0)
    world.kill()
    assert world.table.past.jobs == {}


def test_a_remembered_job_is_forgotten_by_the_time_that_somebody_last_spoke_for_it(world):
    Incarnation(world, "first").join().steps(3)
    world.kill()
    world.pass_s(world.table.forget_after_s - 10.0)
    world.kill()
    assert "j" in world.table.past.jobs
    world.pass_s(20.0)
    assert world.table.past.jobs == {}
    world.pass_s(2.0)
    world.kill()
    assert world.journal.records() == []


def test_a_clock_that_was_set_back_keeps_nothing_longer_than_asked(world):
    Incarnation(world, "first").join().steps(3)
    world.wall_s -= 1e8
    world.kill()
    world.pass_s(world.table.forget_after_s + 1.0)
    assert world.table.past.jobs == {}
