"""Reports that are held back leave together, in order, and are lost only where any would be."""

import time

import msgspec
import numpy as np
import pytest
from scripted import HELLO, IDS, Script, report, until

from lbbsp.core.bounds import Bounds
from lbbsp.protocol import MOST_TOGETHER, Bye, Hello, Report, Welcome, decode_to_manager
from lbbsp.worker.channel import Receiver, Reduction
from lbbsp.worker.client import HOLD_S, Client
from lbbsp.worker.relay import Relay
from lbbsp.worker.vector import Vector, pack


@pytest.fixture
def client(script, clock):
    client = Client(script.address, HELLO, clock=clock)
    script.take(client, Hello)
    script.say(Welcome(**IDS, rank=0, together=8))
    until(lambda: not client.away, client)
    yield client
    client.close()


def hold(client: Client, iterations, together: int = 4, **fields) -> None:
    for iteration in iterations:
        client.report(msgspec.structs.replace(report(iteration), **fields), later=True, together=together)


def taken(script: Script, client: Client, count: int) -> list[Report]:
    return [script.take(client, Report) for _ in range(count)]


def covered(came: list[Report]) -> list[int]:
    """Iterations that reports are of."""
    return [one.iteration - back for one in came for back in reversed(range(one.iterations))]


def test_held_reports_leave_as_one_with_the_next_that_may_not_wait(script, client, clock) -> None:
    hold(client, (0, 1))
    assert script.quiet(client)
    clock.added_s += 0.1
    client.report(report(2), later=False, together=4)
    came = taken(script, client, 1)
    assert covered(came) == [0, 1, 2]
    assert came[0].together == 4
    assert came[0].held_s < 0.1, "of the last one"
    assert script.quiet(client)


def test_an_ordinary_report_overtakes_none(script, client) -> None:
    hold(client, (0, 1))
    client.report(report(2))
    assert covered(taken(script, client, 2)) == [0, 1, 2]


def test_none_is_held_for_long_or_beyond_what_the_manager_takes(script, client, clock) -> None:
    hold(client, (0,))
    clock.added_s += 1.01 * HOLD_S
    hold(client, (1,))
    assert covered(taken(script, client, 1)) == [0, 1]
    hold(client, range(2, 10), together=100)
    came = taken(script, client, 1)
    assert covered(came) == list(range(2, 10))
    assert came[0].together == 8


def test_a_later_manager_that_takes_more_at_once_than_we_ever_tell_is_welcome(script, client) -> None:
    script.say(Welcome(**IDS, rank=0, together=20 * MOST_TOGETHER))
    until(lambda: client.together == MOST_TOGETHER, client)
    hold(client, range(2 * MOST_TOGETHER), together=2 * MOST_TOGETHER)
    assert {one.iterations for one in taken(script, client, 2)} == {MOST_TOGETHER}


def test_another_bound_of_memory_is_told_at_once(script, client) -> None:
    hold(client, (0,))
    hold(client, (1,), max_samples=7)
    assert [(one.iteration, one.iterations, one.max_samples) for one in taken(script, client, 2)] == [
        (0, 1, 0),
        (1, 1, 7),
    ]


def test_a_manager_that_takes_one_at_a_time_gets_one_at_a_time(script, client) -> None:
    script.say(Welcome(**IDS, rank=0))
    until(lambda: client.together == 1, client)
    hold(client, (0,))
    assert taken(script, client, 1) == [report(0)]


def test_close_sends_what_is_held_before_it_says_bye(script, client) -> None:
    hold(client, (0, 1))
    client.close()
    kinds = []
    while not kinds or kinds[-1] is not Bye:
        assert script.router.poll(5000)
        kinds.append(type(msgspec.msgpack.decode(script.router.recv_multipart()[1], type=Report | Bye)))
    assert kinds == [Report, Bye]


class NoLink:
    """Nothing travels."""

    def send(self, payload) -> None: ...

    def receive(self):
        return lambda: pack(Vector(np.array([50, 50]), sequence=1, rest=7), ())


def resting(channel) -> None:
    """One reduction with a message that opens a rest, then one of the rest."""
    channel.reduction(Reduction(1, (), 0.0, report(1)))
    channel.vector(0.0)
    channel.reduction(Reduction(2, (), 0.0, report(2)))


def test_a_rank_that_waits_in_a_rest_for_one_that_hangs_still_says_how_far_it_is(script, client, clock) -> None:
    receiver = Receiver(client, NoLink(), Vector(np.array([50, 50])))
    resting(receiver)
    assert script.take(client, Report).iteration == 1
    assert client.holds
    clock.added_s += 2 * HOLD_S
    deadline_s = time.perf_counter() + 20
    while client.holds and time.perf_counter() < deadline_s:  # the training thread does nothing
        time.sleep(0.01)
    assert script.take(client, Report).iteration == 2
    receiver.close()


def test_rank_0_does_so_too(script, client, clock) -> None:
    bounds = Bounds(100, np.ones(2), np.full(2, 100), 1)
    relay = Relay(client, NoLink(), Vector(bounds.equal(), rest=7), bounds, clock)
    relay.start()
    try:
        relay.reduction(Reduction(1, (), 0.0, report(1)))
        assert client.holds
        clock.added_s += 2 * HOLD_S
        assert script.router.poll(20_000)
        assert decode_to_manager(script.router.recv_multipart()[1]).iteration == 1
    finally:
        relay.close()


def test_at_the_end_of_a_rest_what_is_held_leaves_without_a_newer_report(script, client) -> None:
    receiver = Receiver(client, NoLink(), Vector(np.array([50, 50]), sequence=0, rest=2))
    receiver.reduction(Reduction(1, (), 0.0, report(1)))
    assert client.holds
    receiver.reduction(Reduction(2, (), 0.0, None))
    assert not client.holds
    receiver.close()
