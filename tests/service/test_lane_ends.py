"""Lanes, both ends in one process: frames as they are, tokens good once, and nobody harms another or is kept awake."""

import os
import resource
import signal
import socket
import time

import pytest
from harness import until
from lane_ends import LINUX, MOST, close_all, connect

from lbbsp.service.lane_tokens import Speaker
from lbbsp.service.lanes import FILES_SHARE, MOST_UNNAMED, TURNED_AWAY_A_TICK, Lanes
from lbbsp.service.router import MAX_FRAME_BYTES
from lbbsp.worker.lane import Invitation, Lane, open_lane

pytestmark = LINUX


@pytest.fixture
def lanes():
    made = Lanes()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def all_closed():
    yield
    close_all()


def heard(lanes: Lanes) -> list[tuple[bytes, bytes]]:
    return [(speaker.peer, frame) for _ in range(9) for speaker, frame in lanes.round()]


def lane(lanes: Lanes, peer: bytes = b"p") -> Lane:
    """Open."""
    mine = connect(lanes.invite(Speaker(peer)))
    assert heard(lanes) == []
    assert mine.receive() is None
    assert mine.open
    return mine


def test_frames_go_both_ways_as_they_are(lanes):
    mine = lane(lanes)
    frames = [os.urandom(size) for size in (1, 100, MAX_FRAME_BYTES)]
    assert all(mine.send(frame) for frame in frames)
    assert heard(lanes) == [(b"p", frame) for frame in frames]
    assert all(lanes.send(b"p", frame) for frame in frames)
    assert [mine.receive() for _ in range(4)] == [*frames, None]


def test_a_lane_is_open_when_the_manager_has_answered_and_not_before(lanes):
    mine = connect(lanes.invite(Speaker(b"p")))
    assert mine.receive() is None
    assert not mine.open
    heard(lanes)
    assert mine.receive() is None
    assert mine.open


def test_a_token_is_good_once_and_no_other_is(lanes):
    invitation = lanes.invite(Speaker(b"p"))
    first = connect(invitation)
    heard(lanes)
    token = invitation.token
    wrong = [token, bytes(32), token[:-1], token + b"x"]
    others = [connect(invitation._replace(token=one)) for one in wrong]
    for other in others:
        other.send(b"forged")
    assert heard(lanes) == []
    assert [other.receive() for other in others] == [b""] * len(others), "hung up on"
    assert lanes.send(b"p", b"to the first")
    assert first.receive() == b"to the first"


def test_who_answers_wrongly_is_not_listened_to():
    name = f"lbbsp-{os.urandom(16).hex()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as squatter:
        squatter.bind("\0" + name)
        squatter.listen()
        mine = connect(Invitation(name, b"token", b"answer"))
        connection, _ = squatter.accept()
        with connection:
            connection.send(b"a plan")
            assert mine.receive() == b""
            assert not mine.open


def test_an_earlier_invitation_of_the_same_peer_is_void(lanes):
    older, newer = lanes.invite(Speaker(b"p")), lanes.invite(Speaker(b"p"))
    late, mine = connect(older), connect(newer)
    heard(lanes)
    assert late.receive() == b""
    assert mine.receive() is None
    assert mine.open


def test_the_newer_of_two_lanes_of_a_peer_gets_the_plans_and_both_are_heard(lanes):
    older, newer = lane(lanes), lane(lanes)
    assert lanes.send(b"p", b"news")
    assert (older.receive(), newer.receive()) == (b"", b"news")
    assert older.send(b"from before")
    older.close()
    assert heard(lanes) == [(b"p", b"from before")]
    assert lanes.send(b"p", b"more news")
    assert len(lanes) == 1


def test_what_was_sent_before_a_lane_was_closed_is_heard_even_where_plans_were_not_read(lanes):
    mine = lane(lanes)
    mine.send(b"one")
    heard(lanes)
    lanes.send(b"p", b"never read")
    mine.send(b"two")
    mine.send(b"bye")
    mine.close()
    assert heard(lanes) == [(b"p", b"two"), (b"p", b"bye")]
    assert len(lanes) == 0


def test_a_lane_that_takes_no_more_is_ended_and_still_heard(lanes):
    mine = lane(lanes)
    sent = 0
    while lanes.send(b"p", bytes(1000)):
        sent += 1
        assert sent < 100_000
    assert len(lanes) == 0
    assert mine.send(b"still here")
    assert heard(lanes) == [(b"p", b"still here")]
    for _ in range(sent):
        assert mine.receive() == bytes(1000)
    assert mine.receive() == b""


def test_a_plan_longer_than_a_lane_takes_ends_it(lanes):
    mine = lane(lanes)
    assert not lanes.send(b"p", bytes(2**21))
    assert mine.receive() == b""


def test_a_giant_ends_its_lane(lanes):
    mine = lane(lanes)
    mine.send(bytes(MAX_FRAME_BYTES + 1))
    assert heard(lanes) == []
    assert mine.receive() == b""


def test_who_shows_no_token_gives_way_to_those_who_do_and_goes_in_the_end(lanes):
    idle = []
    for _ in range(2 * MOST_UNNAMED):
        idle.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        idle[-1].connect("\0" + lanes.name)
        heard(lanes)
    mine = lane(lanes)
    mine.send(b"real")
    assert heard(lanes) == [(b"p", b"real")]
    assert sum(_ended(one) for one in idle) == MOST_UNNAMED
    lanes.tick()
    lanes.tick()
    assert all(_ended(one) for one in idle)
    assert mine.send(b"x")
    for one in idle:
        one.close()


def _ended(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        return one.recv(9) == b""
    except BlockingIOError:
        return False


def test_a_round_takes_one_frame_of_each_so_that_nobody_s_news_run_ahead(lanes):
    loud, calm = lane(lanes, b"loud"), lane(lanes, b"calm")
    for number in range(50):
        loud.send(b"%d" % number)
    calm.send(b"calm")
    assert sorted(speaker.peer for speaker, _ in lanes.round()) == [b"calm", b"loud"]
    assert [frame for _, frame in lanes.round()] == [b"1"]


def test_who_is_barred_has_no_lane_and_no_token(lanes):
    first, other = lane(lanes, b"bad"), lane(lanes, b"good")
    unused = lanes.invite(Speaker(b"bad"))
    lanes.bar(b"bad")
    assert first.receive() == b""
    late = connect(unused)
    other.send(b"x")
    assert heard(lanes) == [(b"good", b"x")]
    assert late.receive() == b""


def test_where_nobody_of_ours_listens_there_is_no_lane(lanes, monkeypatch):
    invitation = lanes.invite(Speaker(b"p"))
    assert open_lane(invitation._replace(name=""), MOST) is None
    assert open_lane(invitation._replace(name=f"lbbsp-{32 * '0'}"), MOST) is None
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert open_lane(invitation, MOST) is None, "another user's"


def test_another_user_is_not_let_in_and_keeps_nobody_awake_or_out(lanes, monkeypatch):
    theirs = [connect(lanes.invite(Speaker(b"p"))) for _ in range(TURNED_AWAY_A_TICK)]
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    while lanes.waiting():
        assert heard(lanes) == []
    monkeypatch.undo()
    assert {one.receive() for one in theirs} == {b""}
    knocking = connect(lanes.invite(Speaker(b"q")))
    assert not lanes.waiting(), "it rests until the next tick"
    lanes.tick()
    heard(lanes)
    assert knocking.receive() is None
    assert knocking.open


def test_lanes_leave_files_to_connections():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        few = Lanes()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    mine = [connect(few.invite(Speaker(b"%d" % number))) for number in range(256 // FILES_SHARE + 9)]
    while few.waiting():
        heard(few)
    assert len(few) == 256 // FILES_SHARE
    assert [one.receive() for one in mine[-9:]] == [b""] * 9
    few.close()


def test_a_forked_child_ends_nothing_and_keeps_nothing_open(lanes):
    mine = lane(lanes)
    child = os.fork()
    if not child:
        mine.send(b"from the child")
        mine.close()
        time.sleep(30)
        os._exit(0)
    try:
        assert mine.send(b"from the parent")
        assert heard(lanes) == [(b"p", b"from the parent")]
        mine.leave()  # as when this process is killed
        until(lambda: not heard(lanes) and len(lanes) == 0, "the end of the lane")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
