"""What the manager does beside messages: the line a minute, what it says once, spare time for predictors."""

import logging
import math
import os
import time
from types import SimpleNamespace

import numpy as np
import pytest

from lbbsp.service.idle import LOOK_EVERY_S, IdleCores
from lbbsp.service.job import Job, sizer_maker
from lbbsp.service.rejections import Rejections
from lbbsp.service.silence import Silence
from lbbsp.service.spare import BUSY_SHARE, SHARE, Spare
from lbbsp.service.summary import LINE_EVERY_S, Summary, line, shown
from lbbsp.service.table import JobTable


class Clock:
    """Seconds that pass when told."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def _log(caplog):
    caplog.set_level(logging.INFO)


@pytest.fixture
def job():
    """A running job whose numbers a test sets."""
    stats = SimpleNamespace(
        iteration=41, iteration_time_s=0.0721, wait_share=0.032, lag=1, sizes=np.array([171, 85]), mode="balanced",
        saved_share=0.0,
    )  # fmt: skip
    made = Job("j", sizer_maker("last"), 0.0)
    made.live = SimpleNamespace(stats=lambda: stats, silence=Silence(2, 100.0), newest_iteration=41)
    made.numbers = stats
    return made


def heard(job: Job, now_s: float) -> None:
    for rank in range(2):
        job.live.silence.heard(rank, 41, now_s)


def said(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_one_line_a_minute_a_job(job, caplog):
    summary = Summary(0.0)
    for second in range(int(3 * LINE_EVERY_S) + 1):
        heard(job, float(second))
        summary.look(job, Rejections(), float(second))
    assert said(caplog) == ["job 'j': iteration 41: 72.1 ms, wait 3.2%, lag 1, sizes 171 85"] * 3


def test_the_line_counts_what_was_rejected_and_names_the_silent(job):
    rejections = Rejections()
    for kind in ("stale", "stale", "absurd"):
        rejections.add("j", kind, "")
    job.live.silence.silent[1] = True
    assert line(job, rejections).endswith("; silent [1]; rejected: absurd 1, stale 2")


def test_many_sizes_are_shown_by_their_spread():
    assert shown(np.arange(101)) == "0 / 50 / 100 (least, median, most of 101 ranks)"


def test_a_return_to_equal_sizes_is_said_once_and_the_next_try_too(job, caplog):
    summary = Summary(0.0)
    for second, mode in enumerate(["balanced", "equal", "equal", "balanced", "balanced"]):
        heard(job, float(second))
        job.numbers.mode = mode
        summary.look(job, Rejections(), float(second))
    assert ["back to the equal split" in text for text in said(caplog)] == [True, False]
    assert ["balancing again" in text for text in said(caplog)] == [False, True]


def test_an_observing_job_is_told_once_after_100_iterations_what_balancing_would_save(job, caplog):
    summary = Summary(0.0)
    job.numbers.mode, job.numbers.saved_share = "observe", 0.31
    for iteration in (50, 99, 100, 101, 150):
        job.numbers.iteration = iteration
        heard(job, 1.0)
        summary.look(job, Rejections(), 1.0)
    assert ["about 31 %" in text for text in said(caplog)] == [True]


def test_a_job_that_gathers_has_no_line(caplog):
    Summary(0.0).look(Job("j", sizer_maker("last"), 0.0), Rejections(), 1000.0)
    assert said(caplog) == []


def trained(table: JobTable, clock: Clock, name: str, step_s: float) -> SimpleNamespace:
    """A job whose predictor trains in steps."""

    def train(more) -> None:
        counts.calls += 1
        while more():
            clock.now_s += step_s
            counts.spent_s += step_s

    counts = SimpleNamespace(calls=0, spent_s=0.0)
    table.jobs[name] = SimpleNamespace(live=SimpleNamespace(sizer=SimpleNamespace(train=train)))
    return counts


@pytest.mark.parametrize(("idle", "share"), [(float("nan"), SHARE), (0.6, SHARE), (0.4, BUSY_SHARE)])
def test_training_gets_a_small_share_of_a_core_fairly_and_less_where_none_is_idle(idle, share):
    clock, table = Clock(), JobTable(sizer_maker("last"))
    spare = Spare(table, clock, lambda: False, lambda now_s: idle)
    jobs = [trained(table, clock, name, 1e-3) for name in ("a", "b", "c")]
    start_s = clock.now_s
    for _ in range(5_000):
        clock.now_s += 0.01
        table.planned.update(dict.fromkeys(table.jobs))
        spare.spend()
    spent_s = sum(counts.spent_s for counts in jobs)
    assert 0.5 * share < spent_s / (clock.now_s - start_s) < 1.1 * share
    assert max(counts.spent_s for counts in jobs) < 1.2 * min(counts.spent_s for counts in jobs)


def test_idle_cores_are_counted_between_looks_and_no_more_than_there_are():
    idle, cores = IdleCores(), len(os.sched_getaffinity(0))
    now_s = time.perf_counter()
    assert math.isnan(idle(now_s))
    time.sleep(0.2)
    told = idle(now_s + LOOK_EVERY_S)  # more time than passed: too few, never too many
    assert 0.0 <= told <= cores
    assert idle(now_s + 1.5 * LOOK_EVERY_S) == told, "not looked at again yet"


def test_training_stops_when_a_message_waits():
    clock, table = Clock(), JobTable(sizer_maker("last"))
    waiting = [False, False, True]
    spare = Spare(table, clock, lambda: waiting.pop(0) if waiting else True)
    counts = trained(table, clock, "a", 1e-3)
    clock.now_s += 100.0
    table.planned["a"] = None
    spare.spend()
    assert counts.spent_s == pytest.approx(1e-3)


def test_only_jobs_that_made_a_plan_train():
    clock, table = Clock(), JobTable(sizer_maker("last"))
    spare = Spare(table, clock, lambda: False)
    counts = trained(table, clock, "a", 1e-3)
    clock.now_s += 100.0
    spare.spend()
    assert counts.calls == 0
