"""Ranks on the manager's machine send past ZeroMQ, each as itself alone, and lose nothing where a lane ends."""

import signal
import socket

import msgspec
import pytest
import zmq
from harness import ManagerProcess, Ranks, until
from lane_ends import LINUX, MOST, close_all, connect, here, laned

from lbbsp.protocol import Bye, Hello, Welcome, decode_to_worker, encode
from lbbsp.worker.identity import machine_name
from lbbsp.worker.lane import Invitation, open_lane

pytestmark = LINUX


@pytest.fixture(autouse=True)
def all_closed():
    yield
    close_all()


def test_ranks_on_the_manager_s_machine_get_lanes_and_plans_come_through_them(ranks):
    job = here(ranks(machine=machine_name()).join())
    for iteration in range(20):
        assert job.step().based_on_iteration == iteration


def test_without_lanes_all_goes_by_zeromq(tmp_path):
    manager = ManagerProcess(tmp_path / "log", options=["--no-lane"])
    job = Ranks(manager.address, "plain", machine=machine_name()).join()
    assert laned(job) == [False, False]
    assert sum(job.step().sizes) == 90
    job.close()
    manager.stop()


def test_a_lane_that_ends_costs_no_report_and_no_plan(ranks):
    job = here(ranks(machine=machine_name()).join())
    job.step()
    for client in job.clients:
        assert client._lane is not None
        client._lane._socket.shutdown(socket.SHUT_RDWR)
    for iteration in range(1, 10):
        assert job.step().based_on_iteration == iteration
    assert [client.dropped for client in job.clients] == [0, 0]
    assert laned(job) == [False, False]


def test_who_has_to_say_hello_twice_gets_a_lane_all_the_same(manager):
    """The second welcome's token makes the first one's void, which may be shown by then."""
    job = Ranks(manager.address, "twice", (1000.0,), machine=machine_name())
    client = job.clients[0]
    until(lambda: client._up, "the line", client._watch_line)
    manager.send(signal.SIGSTOP)
    for _ in range(2):
        client._hello_due_s = 0.0
        client.pump()
    manager.send(signal.SIGCONT)
    for _ in range(2):
        until(lambda: client.socket.poll(0), "a welcome")
        client._take_frame(client.socket.recv())
    here(job.join()).step()
    job.close()


def test_a_manager_that_comes_back_gives_new_lanes(manager, tmp_path):
    job = here(Ranks(manager.address, "back", machine=machine_name()).join())
    job.step()
    port = int(manager.address.rpartition(":")[2])
    manager.stop(signal.SIGKILL)
    until(lambda: job.clients[0].away and job.clients[1].away, "the loss", job.pump)
    assert laned(job) == [False, False]
    again = ManagerProcess(tmp_path / "again.log", port)
    here(job.join())
    assert job.step().based_on_iteration == 1
    job.close()
    again.stop()


def test_a_stopped_manager_blocks_nobody_and_goes_on_with_news(manager):
    job = here(Ranks(manager.address, "stopped", machine=machine_name()).join())
    job.step()
    manager.send(signal.SIGSTOP)
    for iteration in range(1, 900):
        for rank in (1, 0):
            job.clients[rank].report(job.report(rank, iteration))
    manager.send(signal.SIGCONT)
    job.iteration = 900

    def next_one() -> None:
        """What is reported before the manager has read what waits may be lost, as news that are too old to matter."""
        job.iteration += 1
        for rank in (1, 0):
            job.clients[rank].report(job.report(rank))
        job.pump()

    until(lambda: (plan := job.clients[0].plan()) is not None and plan.based_on_iteration > 900, "a plan", next_one)
    job.close()


def test_who_speaks_in_another_s_lane_is_not_heard_as_them(shared_manager, ranks):
    """A token of one's own job moves no other job."""
    victim = here(ranks("victim", machine=machine_name()).join())
    victim.step()
    with zmq.Context() as context, context.socket(zmq.DEALER) as thief:
        thief.connect(shared_manager.address)
        fields = {"machine": machine_name(), "world_size": 1, "global_batch": 9, "min_samples": 0, "max_samples": 9}
        thief.send(encode(Hello(job="thief", incarnation="i", rank=0, **fields)))
        welcome = decode_to_worker(thief.recv())
        assert isinstance(welcome, Welcome)
        theirs = connect(Invitation(welcome.lane, welcome.token, welcome.answer))
        until(lambda: theirs.receive() is None and theirs.open, "the lane")
        for rank in (0, 1):
            theirs.send(encode(victim.report(rank, own_time_s=50.0)))
            theirs.send(encode(Bye(**victim.ids, rank=rank)))
        theirs.send(b"\xff" * 100)
        assert decode_to_worker(thief.recv()) is not None, "an answer to what is not its own goes by ZeroMQ"
        until(lambda: theirs.receive() == b"", "the end of its lane")
    assert victim.step().version == 2
    theirs.close()


def test_a_rank_that_resumes_says_hello_before_it_reports_and_gets_a_new_lane(ranks):
    job = here(ranks(machine=machine_name()).join())
    job.step()
    job.ids["incarnation"] = "second"
    for rank, client in enumerate(job.clients):
        client.hello_again(job.hello(rank, machine=machine_name()))
    assert laned(job) == [False, False]
    here(job.join())
    job.iteration = 0
    assert job.step().based_on_iteration == 0


def test_frames_through_a_lane_count_in_the_peer_s_rate(tmp_path):
    manager = ManagerProcess(tmp_path / "log", options=["--max-rate", "50"])
    job = here(Ranks(manager.address, "loud", machine=machine_name()).join())
    mine = job.clients[1]._lane
    assert mine is not None
    until(lambda: not mine.send(b"x"), "the end of the lane", lambda: None)
    until(lambda: "too fast" in manager.log(), "the count")
    job.close()
    manager.stop()


def test_a_rank_on_another_machine_gets_no_invitation(ranks):
    job = ranks(machine="elsewhere").join()
    assert job.step().based_on_iteration == 0
    assert laned(job) == [False, False]


def test_an_older_worker_takes_no_lane_and_an_older_manager_gives_none():
    class OldWelcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
        job: str
        incarnation: str
        rank: int

    new = Welcome(job="j", incarnation="i", rank=0, lane=f"lbbsp-{32 * 'a'}", token=b"t", answer=b"a")
    assert msgspec.msgpack.decode(encode(new), type=OldWelcome) == OldWelcome(job="j", incarnation="i", rank=0)
    old = decode_to_worker(msgspec.msgpack.encode(OldWelcome(job="j", incarnation="i", rank=0)))
    assert isinstance(old, Welcome)
    assert open_lane(Invitation(old.lane, old.token, old.answer), MOST) is None


@pytest.mark.parametrize("name", ["x", "lbbsp-", "lbbsp-" + 31 * "a", "lbbsp-" + 33 * "a", "lbbsp-" + 32 * "a" + "\n"])
def test_a_lane_of_another_s_name_is_no_lane(name):
    with pytest.raises(msgspec.ValidationError):
        decode_to_worker(encode(Welcome(job="j", incarnation="i", rank=0, lane=name)))
