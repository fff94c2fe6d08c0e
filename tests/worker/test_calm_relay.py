"""Who has long had equal sizes waits for no plan at its draws; who has not, or is given others, does."""

import threading
import time

import msgspec
import numpy as np
import pytest
from mesh import MemoryLink, Mesh
from random_manager import ScriptedManager

from lbbsp.core.bounds import Bounds
from lbbsp.protocol import MOST_TOGETHER, Hello, Report
from lbbsp.worker.channel import Reduction
from lbbsp.worker.client import Client
from lbbsp.worker.pacing import REMEMBERED
from lbbsp.worker.relay import WATCH_S, Relay
from lbbsp.worker.rest import APART_COSTS, CALM_AFTER, MOST_EQUAL
from lbbsp.worker.vector import Vector, unpack

BOUNDS = Bounds(8, np.zeros(2), np.full(2, 8), 1)
IDS = {"job": "calm", "incarnation": "i"}
PATIENCE_S = 20.0


class Told(ScriptedManager):
    """Plans the sizes that it is told."""

    sizes = (4, 4)
    sensors_every = 0

    def _offer(self, job, report, sizes) -> None:
        super()._offer(job, report, self.sizes)

    def _claims(self, hello):
        return super()._claims(hello) | {"sensors_every": self.sensors_every}


class Job:
    """Rank 0's relay; rank 1 is played here. The deadline never comes: who waits for a plan waits until it is there."""

    def __init__(self, manager: Told) -> None:
        self.mesh = Mesh(2)
        self.manager = manager
        self.clients = [Client(manager.address, self._hello(rank)) for rank in (0, 1)]
        until(lambda: not any(client.away for client in self.clients), lambda: [c.pump(0.01) for c in self.clients])
        start = Vector(BOUNDS.equal())
        self.relay = Relay(self.clients[0], MemoryLink(self.mesh, 0), start, BOUNDS, time.perf_counter)
        self.relay.pacing.deadline_s = lambda *_: float("inf")  # type: ignore[method-assign]
        self.relay.start()
        self.number = 0

    def _hello(self, rank: int) -> Hello:
        return Hello(**IDS, rank=rank, world_size=2, global_batch=8, min_samples=0, max_samples=8)

    def reduce(self, answered: bool = True, paused_s: float = 0.0) -> None:
        """One reduction of both ranks; the plan for it comes, or rank 1's report is late and it does not."""
        self.number += 1
        if answered:
            self._report_of_rank_1()
        report = Report(**IDS, rank=0, iteration=self.number, samples=4, own_time_s=1.0)
        self.relay.reduction(Reduction(self.number, (), time.perf_counter(), report, paused_s=paused_s))
        self.receive = self.mesh.receive(1)

    def _report_of_rank_1(self) -> None:
        self.clients[1].report(Report(**IDS, rank=1, iteration=self.number, samples=4, own_time_s=1.0))

    def late(self) -> None:
        """Rank 1's report comes after all."""
        self._report_of_rank_1()

    def draw(self) -> Vector:
        """Both ranks see the same."""
        vector, _ = self.relay.vector(0.0)
        payload = self.receive()
        assert tuple(payload[-4:-2]) == tuple(vector.sizes)
        return vector

    def settle(self, iterations: int) -> None:
        for _ in range(iterations):
            self.reduce()
            self.draw()

    def close(self) -> None:
        self.relay.close()
        self.clients[1].close()


def until(condition, tick) -> None:
    deadline_s = time.perf_counter() + PATIENCE_S
    while not condition():
        tick()
        assert time.perf_counter() < deadline_s


@pytest.fixture
def job():
    with Told() as manager:
        made = Job(manager)
        yield made
        made.close()


def test_before_that_a_draw_waits_for_the_plan_of_its_reduction(job) -> None:
    for _ in range(5):
        job.reduce()
        assert job.draw().based_on_iteration == job.number
    job.reduce(answered=False)
    drawn: list[Vector] = []
    draw = threading.Thread(target=lambda: drawn.append(job.draw()))
    draw.start()
    draw.join(0.2)
    assert not drawn
    job.late()
    draw.join(PATIENCE_S)
    assert drawn[0].based_on_iteration == job.number


def test_how_often_sensors_are_read_reaches_all_ranks_with_the_sizes(job) -> None:
    for wanted in (7, 0, 3):
        job.manager.sensors_every = wanted
        job.reduce()
        vector, _ = job.relay.vector(0.0)
        there, _ = unpack(job.receive())
        assert (vector.sensors_every, there.sensors_every) == (wanted, wanted)


def test_after_that_no_draw_waits_and_sizes_follow_an_iteration_later(job) -> None:
    job.settle(CALM_AFTER)
    job.reduce(answered=False)
    assert job.draw().based_on_iteration == job.number - 1, "without the manager"
    job.late()
    until(lambda: job.relay.vector(0.0)[0].based_on_iteration == job.number - 1, lambda: job.settle(1))


def test_other_sizes_end_the_calm_at_once_and_where_they_stay_equal_ones_bring_it_back_after_as_long(job) -> None:
    job.settle(CALM_AFTER)
    job.manager.sizes = (5, 3)
    until(lambda: tuple(job.relay.vector(0.0)[0].sizes) == (5, 3), lambda: job.settle(1))
    for _ in range(MOST_EQUAL // APART_COSTS):
        job.reduce()
        assert job.draw().based_on_iteration == job.number, "it waits again"
    job.manager.sizes = (4, 4)
    job.settle(CALM_AFTER - 1)
    assert not job.relay.calm
    job.settle(1)
    assert job.relay.calm


@pytest.mark.parametrize("collective_s", [0.0, WATCH_S + 0.02])
def test_a_plan_that_is_missing_where_all_came_in_time_holds_the_others_up_but_for_a_moment(job, collective_s) -> None:
    job.manager.sizes = (6, 2)
    job.settle(REMEMBERED)
    assert job.relay.pacing.prompt
    del job.relay.pacing.deadline_s  # the real one
    job.reduce(answered=False)
    time.sleep(collective_s)
    job.relay.reduced()
    began_s = time.perf_counter()
    assert tuple(job.receive()[-4:-2]) == (6, 2), "while rank 0 does not draw"
    assert time.perf_counter() - began_s < 2 * WATCH_S


class Resting(Told):
    together = MOST_TOGETHER


def rested(job: Job, answered: bool = True) -> Vector:
    """Reductions through the end of the rest under way, and the message after it; was rank 1 heard in the rest?"""
    newest, _ = job.relay.vector(0.0)
    while job.number <= newest.holds_through:
        job.number += 1
        if answered or job.number > newest.holds_through:
            job._report_of_rank_1()
        report = Report(**IDS, rank=0, iteration=job.number, samples=4, own_time_s=1.0)
        job.relay.reduction(Reduction(job.number, (), time.perf_counter(), report, left=1000))
        newest_of_all, _ = job.relay.vector(0.0)
        time.sleep(0.02)
    job.mesh.receive(1)()
    return newest_of_all


def test_where_the_plan_of_a_rest_comes_too_late_the_next_message_is_not_a_rest_away() -> None:
    with Resting() as manager:
        job = Job(manager)
        try:
            while (newest := rested(job)).rest < 4:
                assert job.number < 10 * CALM_AFTER
            assert rested(job).rest > 0, "in time"
            newest = rested(job, answered=False)
            assert (newest.rest, newest.sequence - newest.based_on_iteration > 4) == (0, True)
            assert rested(job).rest > 0, "once"
        finally:
            job.close()


def test_a_pause_of_the_loop_is_no_part_of_the_pace_that_rests_go_by(job) -> None:
    pause_s = 0.3
    for _ in range(3):
        job.reduce(paused_s=pause_s)
        job.draw()
        time.sleep(pause_s)
    assert job.relay.pacing.longest_s < pause_s
    job.reduce()
    job.draw()
    assert job.relay.pacing.longest_s >= pause_s, "a wait that is in no report is no pause"


def test_a_relay_with_a_fault_of_its_own_does_not_spin(job) -> None:
    job.settle(1)
    job.relay._ill = True
    turns: list[int] = []
    turn = job.relay._turn
    job.relay._turn = lambda *given: turns.append(1) or turn(*given)
    job.manager.__exit__()
    time.sleep(0.5)
    assert len(turns) < 10


def test_another_incarnation_begins_without_calm(job) -> None:
    job.settle(CALM_AFTER)
    hello = msgspec.structs.replace(job._hello(0), incarnation="second")
    job.relay.restart(hello, Vector(BOUNDS.equal()), BOUNDS)
    until(lambda: not job.relay.calm, lambda: time.sleep(0.001))
