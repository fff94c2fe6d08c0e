"""Bounds on rates, jobs and ranks: what is beyond is refused with the bound's name, and others keep their room."""

import pytest
from table_ranks import hello, peer_of, report, say

from lbbsp.protocol import Bye, Refused, encode
from lbbsp.service.admission import IDLE_S, MOST_OF_ONE, Admission
from lbbsp.service.job import sizer_maker
from lbbsp.service.keys import Caller
from lbbsp.service.rates import BURST_S, MOST_PEERS, Rates
from lbbsp.service.table import JobTable


def spend(rates: Rates, peer: bytes, count: int, at_s: float) -> int:
    return sum(rates.spend(peer, at_s) for _ in range(count))


def test_a_bucket_holds_a_burst_refills_with_time_and_is_nobody_else_s():
    rates = Rates(100.0)
    assert spend(rates, b"a", 1_000, 0.0) == pytest.approx(100 * BURST_S, abs=1)
    assert spend(rates, b"b", 50, 0.0) == 50
    assert spend(rates, b"a", 1_000, 1.0) == pytest.approx(100, abs=1)
    assert sum(rates.spend(b"c", second / 100) for second in range(10_000)) == 10_000


def test_buckets_are_bounded_and_make_room_for_others_when_full_again():
    rates = Rates(100.0)
    for number in range(MOST_PEERS + 1_000):
        rates.spend(b"%d" % number, 0.0)
    assert len(rates._full_s) <= MOST_PEERS + 1
    assert spend(rates, b"new", 10, 10.0) == 10
    assert len(rates._full_s) < 10


def table(**limits) -> JobTable:
    return JobTable(sizer_maker("last"), admission=Admission(**limits))


def test_ranks_of_a_job_are_bounded_and_the_refusal_says_by_what():
    (answer,) = say(table(most_ranks=2), hello(0))[peer_of(0)]
    assert isinstance(answer, Refused)
    assert "3 ranks" in answer.reason
    assert "--max-ranks" in answer.reason


def test_one_caller_s_jobs_are_bounded_by_key_over_all_its_connections():
    jobs = table()
    key = Caller(name="k", job="k*")
    for number in range(MOST_OF_ONE + 5):
        jobs.handle(b"%d" % number, encode(hello(0, job=f"k{number}")), 0.0, key)
    assert len(jobs.jobs) == MOST_OF_ONE
    jobs.handle(b"other", encode(hello(0, job="other")), 0.0, Caller(name="o", job="other"))
    assert "other" in jobs.jobs


def test_an_ended_job_makes_room_for_its_caller():
    jobs = table(most_jobs=1)
    for number in range(3):
        job = {"job": f"j{number}", "world_size": 1}
        say(jobs, hello(0, **job))
        assert list(jobs.jobs) == [job["job"]]
        say(jobs, Bye(job=job["job"], incarnation="i", rank=0))


def test_in_a_full_table_what_has_not_started_gives_way_and_what_runs_stays():
    jobs = table(most_jobs=2)
    for rank in range(3):
        say(jobs, hello(rank, job="runs"))
    say(jobs, hello(0, job="waits"))
    (answer,) = say(jobs, hello(0, job="new"), now_s=IDLE_S)[peer_of(0)]
    assert isinstance(answer, Refused)
    say(jobs, hello(0, job="new"), now_s=2 * IDLE_S)
    assert list(jobs.jobs) == ["runs", "new"]
    for rank in range(3):
        say(jobs, report(rank, 0, 30, 1000.0, job="runs"))
    assert jobs.jobs["runs"].live is not None
