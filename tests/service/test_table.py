"""The table of jobs, without sockets: hellos in any order, incarnations, limits, faults of our own."""

import itertools
import logging

import msgspec
import numpy as np
import pytest
from table_ranks import WORLD, hello, peer_of, report, run, say

from lbbsp.protocol import MOST_TOGETHER, Bye, Plan, Refused, Report, Unknown, Welcome
from lbbsp.service import table as table_module
from lbbsp.service.admission import Admission
from lbbsp.service.job import MAX_GATHERING, sizer_maker
from lbbsp.service.rejections import MAX_KEYS, Rejections
from lbbsp.service.table import FORGET_AFTER_S, JobTable

ORDERS = list(itertools.permutations(range(WORLD)))


@pytest.fixture
def table():
    return JobTable(sizer_maker("last"))


@pytest.mark.parametrize("order", ORDERS)
def test_hellos_come_in_any_order(table, order):
    for rank in order:
        heard = say(table, hello(rank))
        assert isinstance(heard[peer_of(rank)][-1], Welcome)
    assert run(table, [1000.0, 1000.0, 4000.0], 10).sizes == (15, 15, 60)


def test_ranks_are_asked_for_each_iteration_s_own_report_where_it_is_recorded(table):
    table.tap = lambda live, report, now_s: None
    (welcome,) = say(table, hello(0))[peer_of(0)]
    assert welcome.together == 1


def test_a_report_of_several_iterations_makes_one_plan(table):
    for rank in range(WORLD):
        say(table, hello(rank))
    speeds = [1000.0, 1000.0, 4000.0]
    for last in (8, 16):
        for rank, speed in enumerate(speeds):
            heard = say(table, report(rank, last, 30, speed, together=8, iterations=8))
        (plan,) = heard[peer_of(0)]
        assert (plan.based_on_iteration, plan.sizes) == (last, (15, 15, 60))
    assert table.jobs["j"].live.plans == 2


@pytest.mark.parametrize("order", ORDERS)
def test_a_resume_with_other_values_works_in_any_order(table, order):
    for rank in range(WORLD):
        say(table, hello(rank))
    run(table, [1000.0] * WORLD, 5)
    last = {}
    for rank in order:
        for peer, replies in say(table, hello(rank, global_batch=120, max_samples=120)).items():
            last[peer] = replies[-1]
    assert all(isinstance(last[peer_of(rank)], Welcome) for rank in range(WORLD))
    assert sum(run(table, [1000.0] * WORLD, 2, first=50).sizes) == 120


@pytest.mark.parametrize("order", ORDERS)
def test_the_rank_that_disagrees_is_refused_in_any_order(table, order):
    last = {}
    for rank in order:
        for peer, replies in say(table, hello(rank, granularity=2 if rank == 1 else 1)).items():
            last[peer] = replies[-1]
    kinds = [type(last[peer_of(rank)]) for rank in range(WORLD)]
    assert kinds == [Welcome, Refused, Welcome]
    assert "granularity" in last[peer_of(1)].reason


def test_impossible_bounds_stay_refused_when_a_rank_asks_again_until_one_says_something_else(table):
    for rank in range(WORLD):
        heard = say(table, hello(rank, max_samples=20))
    assert [type(replies[-1]) for replies in heard.values()] == [Refused] * WORLD
    (again,) = say(table, hello(1, max_samples=20))[peer_of(1)]
    assert isinstance(again, Refused)
    assert isinstance(say(table, hello(1, max_samples=50))[peer_of(1)][-1], Welcome)
    assert sum(run(table, [1000.0, 4000.0, 1000.0], 5).sizes) == 90


def test_the_largest_lookahead_holds(table):
    for rank in range(WORLD):
        say(table, hello(rank, lookahead=2 * rank))
    assert table.jobs["j"].live.sizer.job.lookahead == 4


def test_a_repeated_hello_changes_nothing_but_the_peer(table):
    for rank in range(WORLD):
        say(table, hello(rank))
    run(table, [1000.0, 1000.0, 4000.0], 10)
    live = table.jobs["j"].live
    assert say(table, hello(0), b"other") == {
        b"other": [Welcome(job="j", incarnation="i", rank=0, together=MOST_TOGETHER)]
    }
    assert table.jobs["j"].live is live
    assert say(table, report(0, 10, 15, 1000.0)) == {peer_of(0): [Unknown(job="j", incarnation="i")]}
    say(table, report(0, 10, 15, 1000.0), b"other")
    say(table, report(1, 10, 15, 1000.0))
    assert list(say(table, report(2, 10, 60, 4000.0))) == [b"other"]


def test_what_was_learnt_follows_the_machine_into_the_next_incarnation(table):
    for rank in range(WORLD):
        say(table, hello(rank))
    run(table, [1000.0, 1000.0, 4000.0], 20)
    moved = {0: "m2", 1: "m0", 2: "m1"}
    for rank in range(WORLD):
        say(table, hello(rank, incarnation="ii", machine=moved[rank]))
    plan = run(table, [4000.0, 1000.0, 1000.0], 1, incarnation="ii")
    assert plan.sizes[0] > 50


def test_the_earlier_incarnation_runs_until_the_next_is_complete(table):
    for rank in range(WORLD):
        say(table, hello(rank))
    for rank in range(WORLD - 1):
        say(table, hello(rank, incarnation="ii"), b"new %d" % rank)
    assert run(table, [1000.0] * WORLD, 3).based_on_iteration == 2
    say(table, hello(WORLD - 1, incarnation="ii"), b"new")
    assert say(table, report(0, 4, 30, 1000.0)) == {peer_of(0): [Unknown(job="j", incarnation="i")]}
    (answer,) = say(table, hello(0))[peer_of(0)]
    assert isinstance(answer, Refused)


def test_incarnations_that_never_gather_are_bounded(table):
    for number in range(10 * MAX_GATHERING):
        say(table, hello(0, incarnation=f"i{number}"))
    assert len(table.jobs["j"]._rosters) == MAX_GATHERING


def test_jobs_are_bounded():
    table = JobTable(sizer_maker("last"), admission=Admission(most_jobs=2))
    for name in ("a", "b"):
        say(table, hello(0, job=name))
    (answer,) = say(table, hello(0, job="c"))[peer_of(0)]
    assert isinstance(answer, Refused)
    assert "2 jobs" in answer.reason


def test_a_rank_beyond_a_world_that_has_shrunk_is_no_part_of_it(table):
    for rank in range(WORLD):
        say(table, hello(rank))
    say(table, hello(0, world_size=1))
    assert table.jobs["j"].live.stats().sizes.tolist() == [90]
    assert say(table, report(1, 0, 30, 1000.0)) == {}
    assert table.rejections.of("j") == {"unknown rank": 1}
    assert isinstance(say(table, report(0, 0, 90, 1000.0))[peer_of(0)][0], Plan)


@pytest.mark.parametrize("rank", [1, 2])
def test_a_rank_beyond_a_world_that_has_shrunk_leaves_without_a_fault_and_may_come_back(table, rank):
    for each in range(WORLD):
        say(table, hello(each))
    (refused,) = {type(one) for one in say(table, hello(0, world_size=1))[peer_of(rank)]}
    assert refused is Refused
    say(table, Bye(job="j", incarnation="i", rank=rank))
    assert table.rejections.of("j") == {}
    assert run(table, [1000.0], 3).sizes == (90,)
    say(table, Bye(job="j", incarnation="i", rank=rank))
    assert table.rejections.of("j") == {"no hello": 1}
    assert isinstance(say(table, hello(rank))[peer_of(rank)][-1], Refused)
    say(table, Bye(job="j", incarnation="i", rank=0))
    assert "j" not in table.jobs


def test_a_job_that_nobody_speaks_for_is_forgotten(table):
    say(table, hello(0), now_s=0.0)
    table.forget_vanished(FORGET_AFTER_S)
    assert "j" in table.jobs
    table.forget_vanished(FORGET_AFTER_S + 1.0)
    assert table.jobs == {}


def test_bye_of_all_ends_the_job_also_while_it_gathers(table):
    for rank in range(2):
        say(table, hello(rank))
    for rank in range(2):
        say(table, Bye(job="j", incarnation="i", rank=rank))
    assert table.jobs == {}


def test_reminders_are_few_and_their_memory_bounded(table, monkeypatch):
    monkeypatch.setattr(table_module, "MAX_PEERS_REMINDED", 10)
    for number in range(100):
        assert say(table, report(0, 0, 1, 1.0), b"%d" % number, now_s=1.0)
        assert not say(table, report(0, 0, 1, 1.0), b"%d" % number, now_s=1.1)
    assert len(table._reminded_s) <= 10


def test_sensors_of_a_rank_are_brought_into_rank_0_s_order(table):
    for rank, names in enumerate([("a", "b"), ("b", "c", "a"), ()]):
        say(table, hello(rank, sensors=names))
    live = table.jobs["j"].live
    assert live.readings(report(0, 0, 1, 1.0, sensors=(1.0, 2.0))) == (1.0, 2.0)
    assert live.readings(report(1, 0, 1, 1.0, sensors=(2.0, 3.0, 1.0))) == (1.0, 2.0)
    np.testing.assert_array_equal(live.readings(report(2, 0, 1, 1.0)), [np.nan, np.nan])
    np.testing.assert_array_equal(live.readings(report(0, 0, 1, 1.0, sensors=(1.0,))), [1.0, np.nan])


def test_a_fault_of_our_own_in_one_job_is_counted_logged_once_and_harms_no_other(table, caplog):
    for rank in range(WORLD):
        say(table, hello(rank))
        say(table, hello(rank, job="other"), b"other %d" % rank)

    def broken(*_args, **_kwargs):
        raise ZeroDivisionError("a mistake")

    table.jobs["j"].live.sizer.report = broken
    for iteration in range(5):
        assert say(table, report(0, iteration, 30, 1.0)) == {}
    assert table.rejections.of("j") == {"internal ZeroDivisionError": 5}
    assert sum(record.exc_info is not None for record in caplog.records) == 1
    for rank in range(WORLD):
        heard = say(table, report(rank, 0, 30, 1.0, job="other"), b"other %d" % rank)
    assert isinstance(heard[b"other 0"][0], Plan)


def test_each_kind_is_logged_once_and_the_table_of_kinds_is_bounded(caplog):
    caplog.set_level(logging.WARNING)
    rejections = Rejections()
    for _ in range(100):
        rejections.add("j", "stale", "iteration 3")
    assert len(caplog.records) == 1
    for number in range(2 * MAX_KEYS):
        rejections.add(f"job {number}", "stale", "iteration 3")
    assert len(rejections._counts) == MAX_KEYS + 1
    assert rejections.total() == {"stale": 100 + 2 * MAX_KEYS}
    rejections.forget("j")
    assert rejections.of("j") == {}


@pytest.mark.parametrize("text", [b"", b"\xff", b"\x80", msgspec.msgpack.encode({"type": "hello"})])
def test_unreadable_frames_are_counted_and_not_answered(table, text):
    assert table.handle(b"peer", text, 0.0) == []
    assert table.rejections.total() == {"malformed": 1}


def test_a_fault_in_the_bookkeeping_of_one_job_ends_no_other(table, monkeypatch):
    for job in ("j", "k"):
        for rank in range(WORLD):
            say(table, hello(rank, job=job), peer=b"%s %d" % (job.encode(), rank))
        for rank in range(WORLD):
            report = Report(job=job, incarnation="i", rank=rank, iteration=1, samples=30, own_time_s=0.1)
            say(table, report, peer=b"%s %d" % (job.encode(), rank))
    caught_up = []
    monkeypatch.setattr(table.jobs["j"].live, "catch_up", lambda: 1 / 0)
    monkeypatch.setattr(table.jobs["k"].live, "catch_up", lambda: caught_up.append("k"))
    table.catch_up()
    assert caught_up == ["k"]
    assert table.rejections.of("j") == {"internal ZeroDivisionError": 1}


def test_detectors_see_each_iteration_of_reports_that_come_at_once(table):
    for rank in range(WORLD):
        say(table, hello(rank))
    run(table, [1000.0] * WORLD, 5)
    live = table.jobs["j"].live
    live.see()
    seen, see = [], live.stragglers.see
    live.stragglers.see = lambda sight: seen.append(sight) or see(sight)
    for rank in range(WORLD):
        for iteration in range(5, 13):
            phases_s = (1.0 * iteration, 0.0, 0.0)
            say(table, report(rank, iteration, 30, 1000.0, together=8, phases_s=phases_s, cost=30.0 * iteration))
    table.catch_up()
    live.see()
    assert [sight.iteration for sight in seen] == list(range(5, 13))
    assert all((sight.phases_s[:, 0] == sight.iteration).all() for sight in seen), "each with what it was told"
    assert all((sight.cost == sight.iteration).all() for sight in seen)


@pytest.mark.parametrize("ends", [(8, 8, 8), (7, 8, 8), (5, 8, 6)])
def test_detectors_see_every_rank_s_cost_where_groups_end_at_different_iterations(table, ends):
    for rank in range(WORLD):
        say(table, hello(rank))
    live = table.jobs["j"].live
    seen, see = [], live.stragglers.see
    live.stragglers.see = lambda sight: seen.append(sight) or see(sight)
    for group in range(6):
        for rank in range(WORLD):
            last = ends[rank] + 8 * group
            say(table, report(rank, last, 30, 1000.0, together=8, iterations=8 if group else 1, cost=30.0 * (1 + rank)))
    live.see()
    whole = [sight for sight in seen if np.isfinite(sight.time_s).all()]
    assert len(whole) >= 5
    assert all(sight.cost.tolist() == [1.0, 2.0, 3.0] for sight in whole[1:])
