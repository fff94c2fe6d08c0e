"""Reports that are held back leave together, in order, and are lost only where any would be."""

import msgspec
import pytest
from scripted import HELLO, IDS, Clock, Script, report, until

from lbbsp.protocol import Bye, Hello, Report, Welcome
from lbbsp.worker.client import HOLD_S, Client


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def script():
    script = Script()
    yield script
    script.close()


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


def test_held_reports_leave_with_the_next_that_may_not_wait(script, client, clock) -> None:
    hold(client, (0, 1))
    assert script.quiet(client)
    clock.added_s += 0.1
    client.report(report(2), later=False, together=4)
    came = taken(script, client, 3)
    assert [one.iteration for one in came] == [0, 1, 2]
    assert all(one.together == 4 for one in came)
    assert came[0].held_s >= 0.1 > came[2].held_s


def test_an_ordinary_report_overtakes_none(script, client) -> None:
    hold(client, (0, 1))
    client.report(report(2))
    assert [one.iteration for one in taken(script, client, 3)] == [0, 1, 2]


def test_none_is_held_for_long_or_beyond_what_the_manager_takes(script, client, clock) -> None:
    hold(client, (0,))
    clock.added_s += 1.01 * HOLD_S
    hold(client, (1,))
    assert [one.iteration for one in taken(script, client, 2)] == [0, 1]
    hold(client, range(2, 10), together=100)
    assert {one.together for one in taken(script, client, 8)} == {8}


def test_another_bound_of_memory_is_told_at_once(script, client) -> None:
    hold(client, (0,))
    hold(client, (1,), max_samples=7)
    assert [one.iteration for one in taken(script, client, 2)] == [0, 1]


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
    assert kinds == [Report, Report, Bye]
