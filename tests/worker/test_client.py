"""The client never blocks and never raises, whatever the manager does; real sockets, a scripted manager."""

import logging
import time

import numpy as np
import pytest
from scripted import HELLO, IDS, Script, plan, report, until

from lbbsp.errors import ConfigError
from lbbsp.protocol import (
    Bye,
    Hello,
    Refused,
    Report,
    Unknown,
    Welcome,
    decode_to_manager,
    encode,
)
from lbbsp.worker.client import PATIENCE_S, Client, CurveKeys

AT_ONCE_S = 2.0
"""Generous: what returns within this did not wait for anybody."""


def messages(caplog, word: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if word in record.getMessage()]


@pytest.fixture(autouse=True)
def _log(caplog):
    caplog.set_level(logging.INFO, logger="lbbsp")


@pytest.fixture
def client(script, clock):
    client = Client(script.address, HELLO, clock=clock)
    yield client
    client.close()


@pytest.fixture
def welcomed(script, client):
    """A client that the manager has welcomed."""
    assert script.take(client, Hello) == HELLO
    script.say(Welcome(**IDS, rank=0))
    until(lambda: not client.away, client)
    return client


def test_reports_go_and_the_newest_plan_is_kept(script, welcomed):
    welcomed.report(report(0))
    welcomed.report(report(1))
    assert script.take(welcomed, Report) == report(0)
    assert script.take(welcomed, Report) == report(1)
    assert welcomed.plan() is None
    script.say(plan(0, version=1))
    until(lambda: welcomed.plan() is not None, welcomed)
    script.say(plan(1, version=2, sizes=(70, 30)))
    until(lambda: welcomed.plan().sizes == (70, 30), welcomed)
    assert welcomed.dropped == welcomed.ignored == 0


@pytest.mark.parametrize(
    "bad",
    [
        plan(4, version=2),
        plan(3, version=7),
        plan(5, version=8),
        plan(7, version=9),
        plan(6, version=9, incarnation="earlier"),
        plan(6, version=9, job="another"),
        b"",
        b"\xc1 random bytes",
        encode(report(6)),
    ],
    ids=[
        "older",
        "older, higher version",
        "duplicate",
        "of the future",
        "incarnation",
        "job",
        "empty",
        "bytes",
        "kind",
    ],
)
def test_what_is_no_new_plan_of_ours_changes_nothing(script, welcomed, bad):
    for iteration in range(7):
        welcomed.report(report(iteration))
    script.take(welcomed, Report)
    good = plan(5, version=8)
    script.say(good)
    until(lambda: welcomed.plan() == good, welcomed)
    script.say(bad)
    until(lambda: welcomed.ignored == 1, welcomed)
    assert welcomed.plan() == good


def test_a_restarted_manager_counts_anew_and_its_plans_are_taken(script, welcomed):
    for iteration in range(10):
        welcomed.report(report(iteration))
    script.take(welcomed, Report)
    script.say(plan(8, version=500))
    until(lambda: welcomed.plan() is not None, welcomed)
    script.say(plan(9, version=1, sizes=(30, 70)))
    until(lambda: welcomed.plan().sizes == (30, 70), welcomed)
    assert welcomed.plan().version == 501


def test_a_manager_that_was_never_there_costs_nothing_and_is_named_once(clock, caplog):
    client = Client("tcp://127.0.0.1:1", HELLO, clock=clock)
    for iteration in range(20):
        before_s = time.perf_counter()
        client.report(report(iteration))
        assert time.perf_counter() - before_s < AT_ONCE_S
        clock.added_s += 0.5 * PATIENCE_S
    assert client.away
    assert client.dropped == 20
    assert len(messages(caplog, "is away")) == 1
    client.close()


def test_gone_is_said_once_back_is_said_once_and_hello_comes_from_a_new_peer(script, welcomed, caplog):
    earlier_peer = script.peer
    script.close()
    until(lambda: welcomed.away, welcomed)
    for iteration in range(5):
        welcomed.report(report(iteration))
        welcomed.pump(0.02)
    assert welcomed.dropped == 5
    again = Script(script.address)
    assert again.take(welcomed, Hello) == HELLO
    assert again.peer != earlier_peer
    again.say(Welcome(**IDS, rank=0))
    until(lambda: not welcomed.away, welcomed)
    welcomed.report(report(5))
    assert again.take(welcomed, Report) == report(5), "reports of the absence must not come late"
    assert len(messages(caplog, "is away")) == 1
    assert len(messages(caplog, "is back")) == 1
    again.close()


def test_ranks_other_than_0_stay_below_warning(clock, caplog):
    client = Client("tcp://127.0.0.1:1", Hello(**IDS, rank=1, world_size=2, global_batch=100, min_samples=1,
                                               max_samples=100), clock=clock)  # fmt: skip
    clock.added_s += 2 * PATIENCE_S
    client.pump()
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    client.close()


def test_unknown_is_answered_with_hello(script, welcomed):
    welcomed.report(report(0))
    script.take(welcomed, Report)
    script.say(Unknown(**IDS))
    assert script.take(welcomed, Hello) == HELLO
    script.say(Welcome(**IDS, rank=0))
    until(lambda: not welcomed.away, welcomed)


def test_a_flood_of_unknowns_brings_few_hellos(script, welcomed):
    welcomed.report(report(0))
    script.take(welcomed, Report)
    for _ in range(100):
        script.say(Unknown(**IDS))
    script.take(welcomed, Hello)
    script.say(Welcome(**IDS, rank=0))
    assert script.quiet(welcomed)


def test_an_unanswered_hello_is_said_again_with_growing_pauses(script, client, clock):
    heard = 0
    for _ in range(100):
        script.quiet(client, 0.001)
        while script.router.poll(0):
            assert isinstance(decode_to_manager(script.router.recv_multipart()[1]), Hello)
            heard += 1
        clock.added_s += 0.2
    assert 4 <= heard <= 12


def test_a_refusal_is_logged_once_and_ends_the_reports(script, client, caplog):
    script.take(client, Hello)
    for _ in range(3):
        script.say(Refused(**IDS, reason="global_batch disagrees: 64 would work"))
    until(lambda: client.refused is not None, client)
    for iteration in range(3):
        client.report(report(iteration))
    assert script.quiet(client)
    assert client.dropped == 3
    assert client.away
    assert len(messages(caplog, "64 would work")) == 1
    assert messages(caplog, "is away") == []


def test_a_welcome_after_a_refusal_counts(script, client):
    script.take(client, Hello)
    script.say(Refused(**IDS, reason="no"))
    until(lambda: client.refused is not None, client)
    script.say(Welcome(**IDS, rank=0))
    until(lambda: not client.away, client)
    assert client.refused is None


def test_after_a_refusal_a_manager_that_comes_back_is_asked_again(script, client):
    script.take(client, Hello)
    script.say(Refused(**IDS, reason="no"))
    until(lambda: client.refused is not None, client)
    script.close()
    until(lambda: client.refused is None, client)
    again = Script(script.address)
    assert again.take(client, Hello) == HELLO
    again.close()


def test_a_manager_that_reads_nothing_never_blocks_a_report(script, welcomed):
    for iteration in range(100_000):
        welcomed.report(report(iteration))
        if welcomed.dropped and welcomed.away:
            break
    assert welcomed.dropped
    assert welcomed.away
    before_s = time.perf_counter()
    welcomed.report(report(100_001))
    assert time.perf_counter() - before_s < AT_ONCE_S


def test_a_report_that_cannot_be_encoded_is_dropped_and_named(welcomed, caplog):
    bad = Report(**IDS, rank=0, iteration=0, samples=1, own_time_s=np.float64(1.0))
    welcomed.report(bad)
    assert welcomed.dropped == 1
    assert messages(caplog, "float64")


def test_another_hello_makes_earlier_plans_void(script, welcomed):
    welcomed.report(report(3))
    script.take(welcomed, Report)
    script.say(plan(3))
    until(lambda: welcomed.plan() is not None, welcomed)
    resumed = Hello(job="j", incarnation="second", rank=0, world_size=2, global_batch=90, min_samples=1,
                    max_samples=90)  # fmt: skip
    welcomed.hello_again(resumed)
    assert welcomed.plan() is None
    assert welcomed.away
    assert script.take(welcomed, Hello) == resumed


def test_close_says_bye_and_twice_is_fine(script, welcomed):
    welcomed.close()
    welcomed.close()
    assert script.router.poll(5_000)
    assert isinstance(decode_to_manager(script.router.recv_multipart()[1]), Bye)


def test_waits_end_early_when_a_message_comes_and_in_time_when_none_does(script, welcomed):
    before_s = time.perf_counter()
    welcomed.pump(0.05)
    assert time.perf_counter() - before_s >= 0.05
    welcomed.report(report(0))
    script.take(welcomed, Report)
    script.say(plan(0))
    until(lambda: welcomed.plan() is not None, welcomed)


@pytest.mark.parametrize("address", ["", "nowhere", "tcp://", "tcp://127.0.0.1", "udp://127.0.0.1:5"])
def test_an_address_that_is_none_is_named(address):
    with pytest.raises(ConfigError, match=r"tcp://HOST:PORT"):
        Client(address, HELLO)


def test_keys_that_are_none_are_named():
    keys = CurveKeys(server_public="short", client_public="x" * 40, client_secret="y" * 40)
    with pytest.raises(ConfigError, match="manager at"):
        Client("tcp://127.0.0.1:1", HELLO, curve=keys)


def test_keys_do_not_show_their_secret():
    assert "hush" not in repr(CurveKeys(server_public="a", client_public="b", client_secret="hush"))
