"""Lanes: ranks on the manager's machine send past ZeroMQ, each as itself alone, and lose nothing where a lane ends."""

import os
import signal
import socket
import time

import msgspec
import pytest
import zmq
from harness import ManagerProcess, Ranks, until

from lbbsp.protocol import Bye, Hello, Look, Plan, Welcome, decode_to_worker, encode
from lbbsp.service.keys import ANYBODY, Caller
from lbbsp.service.lanes import FRAMES_A_TURN, MOST_UNNAMED, Lanes
from lbbsp.service.router import MAX_FRAME_BYTES
from lbbsp.worker.lane import Lane, open_lane

pytestmark = pytest.mark.skipif(not hasattr(socket, "SOCK_SEQPACKET"), reason="no such sockets")
MOST = 65_536
OPEN: list[Lane] = []
"""Closed after each test."""


@pytest.fixture
def lanes():
    made = Lanes()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def all_closed():
    yield
    while OPEN:
        OPEN.pop().close()


def connect(name: str, token: bytes) -> Lane:
    OPEN.append(Lane(name, token, MOST))
    return OPEN[-1]


def heard(lanes: Lanes) -> list[tuple[bytes, bytes]]:
    return [(speaker.peer, frame) for _ in range(4) for speaker, frame in lanes.receive()]


def lane(lanes: Lanes, peer: bytes = b"p", caller: Caller = ANYBODY) -> Lane:
    return connect(lanes.name, lanes.offer(peer, caller))


# --- one machine, two ends


def test_frames_go_both_ways_as_they_are(lanes):
    mine = lane(lanes)
    frames = [os.urandom(size) for size in (1, 100, MAX_FRAME_BYTES)]
    assert all(mine.send(frame) for frame in frames)
    assert heard(lanes) == [(b"p", frame) for frame in frames]
    assert all(lanes.send(b"p", frame) for frame in frames)
    assert [mine.receive() for _ in range(4)] == [*frames, None]
    mine.close()


def test_a_token_is_good_once_and_no_other_is(lanes):
    token = lanes.offer(b"p", ANYBODY)
    first = connect(lanes.name, token)
    assert first.send(b"first")
    others = [connect(lanes.name, wrong) for wrong in (token, b"", bytes(32), token[:-1], token + b"x") if wrong]
    for other in others:
        other.send(b"forged")
    assert heard(lanes) == [(b"p", b"first")]
    assert [other.receive() for other in others] == [b""] * len(others), "hung up on"
    assert lanes.send(b"p", b"to the first")
    assert first.receive() == b"to the first"


def test_the_newer_of_two_lanes_of_a_peer_is_its_lane(lanes):
    older, newer = lane(lanes), lane(lanes)
    heard(lanes)
    assert lanes.send(b"p", b"news")
    assert (older.receive(), newer.receive()) == (b"", b"news")
    assert len(lanes) == 1


def test_what_was_sent_before_a_lane_was_closed_is_heard_even_where_replies_were_not_read(lanes):
    mine = lane(lanes)
    mine.send(b"one")
    heard(lanes)
    lanes.send(b"p", b"never read")
    mine.send(b"two")
    mine.send(b"bye")
    mine.close()
    assert heard(lanes) == [(b"p", b"two"), (b"p", b"bye")]
    assert len(lanes) == 0


def test_a_peer_that_does_not_read_loses_its_lane_and_not_the_manager_s_time(lanes):
    mine = lane(lanes)
    heard(lanes)
    sent = 0
    while lanes.send(b"p", bytes(1000)):
        sent += 1
        assert sent < 100_000
    assert len(lanes) == 0
    while mine.receive():
        pass
    assert mine.receive() == b""
    assert not mine.send(b"x")


def test_who_shows_no_token_gives_way(lanes):
    idle = []
    for _ in range(2 * MOST_UNNAMED):
        idle.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        idle[-1].connect("\0" + lanes.name)
        heard(lanes)
    mine = lane(lanes)
    mine.send(b"real")
    assert heard(lanes) == [(b"p", b"real")]
    ended = 0
    for one in idle:
        one.setblocking(False)
        try:
            ended += one.recv(9) == b""
        except BlockingIOError:
            continue
        finally:
            one.close()
    assert ended >= MOST_UNNAMED


def test_one_that_floods_leaves_others_their_turn(lanes):
    loud, calm = lane(lanes, b"loud"), lane(lanes, b"calm")
    while loud.send(b"x"):
        pass
    calm.send(b"calm")
    heard_first: list[bytes] = []
    for _ in range(2):
        heard_first += [speaker.peer for speaker, _ in lanes.receive()]
    assert b"calm" in heard_first
    assert heard_first.count(b"loud") <= 2 * FRAMES_A_TURN


def test_lanes_of_callers_that_are_known_no_more_are_closed(lanes):
    gone, stays = Caller(name="gone", public="1"), Caller(name="stays", public="2")
    theirs, ours = lane(lanes, b"t", gone), lane(lanes, b"o", stays)
    unused = lanes.offer(b"u", gone)
    heard(lanes)
    lanes.keep(lambda caller: caller == stays)
    assert theirs.receive() == b""
    assert ours.send(b"x")
    late = connect(lanes.name, unused)
    late.send(b"late")
    assert heard(lanes) == [(b"o", b"x")]


def test_where_nobody_of_ours_listens_there_is_no_lane(lanes, monkeypatch):
    assert open_lane("", b"t", MOST) is None
    assert open_lane("lbbsp-nobody", b"t", MOST) is None
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert open_lane(lanes.name, b"t", MOST) is None, "another user's"


def test_another_user_is_not_let_in(lanes, monkeypatch):
    token = lanes.offer(b"p", ANYBODY)
    mine = connect(lanes.name, token)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    mine.send(b"x")
    assert heard(lanes) == []
    assert mine.receive() == b""


# --- a manager and its ranks


def laned(job: Ranks) -> list[bool]:
    return [client.lane >= 0 for client in job.clients]


def test_ranks_on_the_manager_s_machine_get_lanes_and_plans_come_through_them(ranks):
    job = ranks().join()
    assert laned(job) == [True, True]
    for iteration in range(20):
        assert job.step().based_on_iteration == iteration


def test_without_lanes_all_goes_by_zeromq(tmp_path):
    manager = ManagerProcess(tmp_path / "log", options=["--no-lane"])
    job = Ranks(manager.address, "plain").join()
    assert laned(job) == [False, False]
    assert sum(job.step().sizes) == 90
    job.close()
    manager.stop()


def test_a_lane_that_ends_costs_no_report_and_no_plan(ranks):
    job = ranks().join()
    job.step()
    for client in job.clients:
        assert client._lane is not None
        client._lane._socket.shutdown(socket.SHUT_RDWR)
    for iteration in range(1, 10):
        assert job.step().based_on_iteration == iteration
    assert [client.dropped for client in job.clients] == [0, 0]
    assert laned(job) == [False, False]


def test_a_manager_that_comes_back_gives_new_lanes(manager, tmp_path):
    job = Ranks(manager.address, "back").join()
    job.step()
    port = int(manager.address.rpartition(":")[2])
    manager.stop(signal.SIGKILL)
    until(lambda: job.clients[0].away and job.clients[1].away, "the loss", job.pump)
    assert laned(job) == [False, False]
    again = ManagerProcess(tmp_path / "again.log", port)
    job.join()
    assert laned(job) == [True, True]
    assert job.step().based_on_iteration == 1
    job.close()
    again.stop()


def test_a_stopped_manager_blocks_nobody_and_goes_on_with_news(manager):
    job = Ranks(manager.address, "stopped").join()
    job.step()
    manager.send(signal.SIGSTOP)
    began_s = time.perf_counter()
    for iteration in range(1, 900):
        for rank in (1, 0):
            job.clients[rank].report(job.report(rank, iteration))
    assert time.perf_counter() - began_s < 10
    manager.send(signal.SIGCONT)
    job.iteration = 900
    until(lambda: not any(client.away for client in job.clients), "welcome", job.pump)
    job.step(adopt=False)
    job.close()


def test_who_speaks_in_another_s_lane_is_not_heard_as_them(shared_manager, ranks):
    """A token of one's own job moves no other job."""
    victim = ranks("victim").join()
    victim.step()
    with zmq.Context() as context, context.socket(zmq.DEALER) as thief:
        thief.connect(shared_manager.address)
        fields = {"world_size": 1, "global_batch": 9, "min_samples": 0, "max_samples": 9}
        thief.send(encode(Hello(job="thief", incarnation="i", rank=0, **fields)))
        welcome = decode_to_worker(thief.recv())
        assert isinstance(welcome, Welcome)
        theirs = connect(welcome.lane, welcome.token)
        for rank in (0, 1):
            theirs.send(encode(victim.report(rank, own_time_s=50.0)))
            theirs.send(encode(Bye(**victim.ids, rank=rank)))
        theirs.send(b"\xff" * 100)
        theirs.send(encode(Look(job="thief")))
        until(lambda: theirs.receive() not in (None, b""), "the answer")
    assert victim.step().version == 2
    theirs.close()


def test_a_rank_that_resumes_says_hello_before_it_reports_and_gets_a_new_lane(ranks):
    job = ranks().join()
    job.step()
    job.ids["incarnation"] = "second"
    for rank, client in enumerate(job.clients):
        client.hello_again(job.hello(rank))
    assert laned(job) == [False, False]
    job.join()
    job.iteration = 0
    assert job.step().based_on_iteration == 0
    assert laned(job) == [True, True]


def test_frames_through_a_lane_count_in_the_peer_s_rate(tmp_path):
    manager = ManagerProcess(tmp_path / "log", options=["--max-rate", "50"])
    job = Ranks(manager.address, "loud").join()
    mine = job.clients[1]._lane
    assert mine is not None
    until(lambda: not mine.send(b"x"), "the end of the lane", lambda: None)
    until(lambda: "too fast" in manager.log(), "the count")
    job.close()
    manager.stop()


def test_an_older_worker_takes_no_lane_and_an_older_manager_gives_none():
    class OldWelcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
        job: str
        incarnation: str
        rank: int

    new = Welcome(job="j", incarnation="i", rank=0, lane="lbbsp-x", token=b"t")
    assert msgspec.msgpack.decode(encode(new), type=OldWelcome) == OldWelcome(job="j", incarnation="i", rank=0)
    old = decode_to_worker(msgspec.msgpack.encode(OldWelcome(job="j", incarnation="i", rank=0)))
    assert isinstance(old, Welcome)
    assert open_lane(old.lane, old.token, MOST) is None


def test_a_plan_longer_than_a_lane_takes_goes_by_zeromq(lanes):
    mine = lane(lanes)
    heard(lanes)
    huge = encode(Plan(job="j", incarnation="i", version=1, based_on_iteration=0, sizes=(2**40,) * 65_536))
    assert not lanes.send(b"p", huge)
    assert mine.receive() == b""
