"""When the table's jobs need no plan soon, and how often their ranks are asked to read sensors."""

import pytest
from table_ranks import WORLD, hello, peer_of, report, run, say

from lbbsp.protocol import Bye
from lbbsp.service.job import sensors_every, sizer_maker
from lbbsp.service.live import SELDOM
from lbbsp.service.table import QUIET_S, JobTable


@pytest.fixture
def table():
    return JobTable(sizer_maker("last"))


def test_jobs_are_at_rest_while_they_tell_of_several_iterations_at_once_and_not_before_or_after(table):
    assert not table.at_rest
    for rank in range(WORLD):
        say(table, hello(rank))
    assert not table.at_rest
    run(table, [1000.0] * WORLD, 3)
    assert not table.at_rest
    for rank in range(WORLD):
        say(table, report(rank, 10, 30, 1000.0, together=8, iterations=8))
    assert table.at_rest
    say(table, hello(0, job="other", incarnation="k", world_size=1))
    assert not table.at_rest, "a job that begins"
    say(table, report(0, 1, 90, 1000.0, job="other", incarnation="k", together=8, iterations=8))
    assert table.at_rest
    for rank in range(WORLD):
        say(table, report(rank, 11, 30, 1000.0))
    assert not table.at_rest


def test_a_new_incarnation_is_not_at_rest(table):
    for rank in range(WORLD):
        say(table, hello(rank))
    for rank in range(WORLD):
        say(table, report(rank, 10, 30, 1000.0, together=8, iterations=8))
    assert table.at_rest
    for rank in range(WORLD):
        say(table, hello(rank, incarnation="next"), b"new %d" % rank)
    assert not table.at_rest


def test_jobs_that_have_ended_or_told_nothing_for_long_keep_nobody_from_rest(table):
    for rank in range(WORLD):
        say(table, hello(rank))
    run(table, [1000.0] * WORLD, 3)
    table.forget_vanished(QUIET_S / 2)
    assert not table.at_rest
    table.forget_vanished(QUIET_S + 1.0)
    assert table.at_rest
    for rank in range(WORLD):
        say(table, Bye(job="j", incarnation="i", rank=rank))
    assert not table.jobs
    assert not table.at_rest


@pytest.mark.parametrize("recorded", [False, True])
def test_ranks_read_sensors_seldom_while_the_predictor_needs_none_and_always_where_they_are_recorded(recorded):
    table = JobTable(sizer_maker("auto:members=ema+last+arx"))
    table.tap = (lambda *_: None) if recorded else None
    for rank in range(WORLD):
        say(table, hello(rank, sensors=("load",)))
    asked = [run(table, [1000.0] * WORLD, 1, iteration, sensors=(1.0,)).sensors_every for iteration in range(900)]
    assert set(asked[:200]) == {0}
    assert set(asked) == ({0} if recorded else {0, SELDOM})


@pytest.mark.parametrize("predictor", ["ema", "auto:members=ema+last"])
def test_a_predictor_without_sensors_asks_for_few(predictor):
    table = JobTable(sizer_maker(predictor), sensors_every(predictor))
    for rank in range(WORLD):
        (welcome,) = say(table, hello(rank))[peer_of(rank)]
    assert welcome.sensors_every == (SELDOM if predictor == "ema" else 1)
    assert run(table, [1000.0] * WORLD, 3).sensors_every == SELDOM
