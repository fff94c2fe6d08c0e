"""Rules 2, 3 and 7 on one rank, over a channel played by the test: what is reported when, and which sizes hold."""

import itertools
from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lbbsp.errors import OutOfStepError
from lbbsp.protocol import Hello
from lbbsp.worker.channel import Reduction
from lbbsp.worker.cursor import Cursor, Epoch
from lbbsp.worker.follower import WARM_UP_ITERATIONS, Follower
from lbbsp.worker.owntime import HostMarks, OwnTime
from lbbsp.worker.vector import Place, Vector

HELLO = Hello(job="j", incarnation="i", rank=0, world_size=2, global_batch=20, min_samples=0, max_samples=20)
START = Vector(np.array([10, 10]))


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Played:
    """A channel that says what the test wants."""

    def __init__(self) -> None:
        self.events: list[Reduction] = []
        self.sizes: deque[int] = deque()
        self.places: tuple[Place, ...] = ()
        self.newest = START

    def reduction(self, event: Reduction) -> None:
        self.events.append(event)
        mine = self.sizes.popleft() if self.sizes else int(self.newest.sizes[0])
        self.newest = Vector(np.array([mine, 20 - mine]), event.sequence, event.sequence, event.sequence)

    def reduced(self) -> None:
        pass

    def vector(self, usual_tail_s: float, sent: bool = False) -> tuple[Vector, tuple[Place, ...]]:
        return self.newest, self.places

    def restart(self, hello: Hello, start: Vector, bounds: Any) -> None:
        self.newest = replace(start, sequence=self.newest.sequence)

    def close(self) -> None:
        pass


class Loop:
    """One rank's training loop."""

    def __init__(self, marks: Any = None) -> None:
        self.clock, self.channel = Clock(), Played()
        own = OwnTime(marks or HostMarks(self.clock), self.clock)
        self.follower = Follower(HELLO, self.channel, START, 0, own, self.clock)
        self.cursor = self.begin()

    def begin(self, key: int = 0) -> Cursor:
        return self.follower.begin(Epoch(key, np.arange(20_000), 5, 20))

    def draw(self, input_s: float = 0.0) -> None:
        self.follower.draw(self.cursor)
        self.cursor.next_part()
        self.clock.now_s += input_s
        self.follower.drawn(self.cursor, input_s)

    def reduce(self, work_s: float = 0.1, wait_s: float = 0.05, tail_s: float = 0.01) -> None:
        self.clock.now_s += work_s
        self.follower.reduction()
        self.clock.now_s += wait_s
        self.follower.reduced()
        self.clock.now_s += tail_s

    def iterate(self, count: int = 1) -> None:
        for _ in range(count):
            self.draw()
            self.reduce()

    @property
    def reports(self) -> list[Any]:
        return [event.report for event in self.channel.events if event.report is not None]


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_each_iteration_is_reported_once_with_its_own_time_and_its_wait(loop: Loop) -> None:
    loop.iterate(6)
    assert [report.iteration for report in loop.reports] == [1, 2, 3, 4, 5, 6]
    assert {(report.samples, report.draws) for report in loop.reports} == {(10, 1)}
    assert [report.own_time_s for report in loop.reports[1:]] == pytest.approx([0.11] * 5)
    assert [report.wait_s for report in loop.reports[1:]] == pytest.approx([0.05] * 5)


def test_input_is_told_and_is_own_work(loop: Loop) -> None:
    loop.iterate(4)
    loop.draw(input_s=0.03)
    loop.reduce()
    assert loop.reports[-1].input_s == pytest.approx(0.03)
    assert loop.reports[-1].own_time_s == pytest.approx(0.14)


def test_accumulated_draws_are_one_iteration(loop: Loop) -> None:
    for _ in range(4):
        loop.draw()
        loop.clock.now_s += 0.1
        loop.draw()
        loop.reduce()
    assert {(report.samples, report.draws) for report in loop.reports} == {(20, 2)}
    assert loop.reports[-1].own_time_s == pytest.approx(0.21)


def test_two_reductions_a_draw_are_one_iteration(loop: Loop) -> None:
    for _ in range(6):
        loop.draw()
        loop.reduce()
        loop.reduce()
    assert loop.follower.reductions == 12
    reports = loop.reports[2:]
    assert [b.iteration - a.iteration for a, b in itertools.pairwise(reports)] == [2] * (len(reports) - 1)
    assert [report.own_time_s for report in reports] == pytest.approx([0.22] * len(reports))


def test_warm_up_and_the_first_time_at_a_size_are_not_settled(loop: Loop) -> None:
    loop.iterate(WARM_UP_ITERATIONS + 2)
    settled = [report.settled for report in loop.reports]
    assert settled == [False] * WARM_UP_ITERATIONS + [True, True]
    loop.channel.sizes.extend([16, 16, 10])
    loop.iterate(5)
    assert [report.settled for report in loop.reports[-5:]] == [True, False, True, True, True]


def test_an_iteration_in_which_another_iterator_was_drawn_from_is_not_settled(loop: Loop) -> None:
    for _ in range(2 * WARM_UP_ITERATIONS):
        loop.draw()
        loop.reduce()
    loop.draw()
    main, loop.cursor = loop.cursor, loop.begin(key=1)
    loop.draw()
    loop.draw()
    loop.reduce()
    loop.cursor = main
    settled = [event.report.settled for event in loop.channel.events if event.report]
    assert settled[-2:] == [True, False]


def test_an_empty_part_says_nothing_of_speed(loop: Loop) -> None:
    loop.channel.sizes.extend([0, 0, 0, 0, 0, 0])
    loop.iterate(7)
    assert not any(report.settled for report in loop.reports)


def test_sizes_follow_the_channel_and_lag_1_where_it_is_prompt(loop: Loop) -> None:
    loop.channel.sizes.extend([11, 12, 13])
    seen = []
    for _ in range(4):
        loop.draw()
        seen.append(int(loop.follower.in_force.sizes[0]))
        loop.reduce()
    assert seen == [10, 11, 12, 13]
    assert loop.follower.totals.plan_changes == 3
    assert set(loop.follower.totals.lags) == {1}


def test_a_rank_that_is_elsewhere_raises_and_says_where(loop: Loop) -> None:
    loop.iterate(2)
    loop.channel.places = (Place(0, 5, 5),)
    with pytest.raises(OutOfStepError, match="rank 0 is at epoch 0 draw 1, rank 0 at epoch 0 draw 5"):
        loop.draw()


def test_a_rank_with_another_order_raises(loop: Loop) -> None:
    loop.iterate(1)
    loop.channel.places = (Place(0, 0, 6),)
    with pytest.raises(OutOfStepError, match="another order of samples"):
        loop.draw()


def test_after_a_resume_the_start_holds_until_a_plan_of_a_later_reduction(loop: Loop) -> None:
    loop.channel.sizes.extend([15, 15])
    loop.iterate(2)
    loop.follower.fall_back(START, hello_of("i.1"), 100)
    loop.cursor = loop.begin(1)
    loop.channel.sizes.append(18)
    loop.draw()
    assert loop.follower.in_force is START
    assert loop.follower.reductions == 100
    loop.reduce()
    assert loop.reports[-1].incarnation == "i.1"
    loop.draw()
    assert loop.follower.in_force.sizes[0] == 18
    assert loop.follower.reductions == 101


def hello_of(name: str) -> Hello:
    return Hello(job="j", incarnation=name, rank=0, world_size=2, global_batch=20, min_samples=0, max_samples=20)


def test_time_between_epochs_is_no_own_time(loop: Loop) -> None:
    loop.iterate(5)
    loop.follower.finish()
    loop.clock.now_s += 1000.0
    loop.cursor = loop.begin(1)
    loop.clock.now_s += 1000.0
    loop.iterate(3)
    assert max(report.own_time_s for report in loop.reports) < 0.2


def test_where_the_device_lags_the_report_comes_when_its_time_is_known() -> None:
    clock = Clock()

    class Device:
        done_s = 0.0

        def stamp(self) -> float:
            return clock.now_s

        def between(self, start: float, end: float) -> float | None:
            return end - start if end <= self.done_s else None

    device = Device()
    loop = Loop(device)
    loop.clock = clock
    loop.follower._clock = loop.follower.own._clock = clock
    loop.iterate(2)
    assert loop.reports == []
    device.done_s = clock.now_s
    loop.iterate()
    assert [report.iteration for report in loop.reports] == [2], "the newest that is known"
    assert loop.reports[0].own_time_s == pytest.approx(0.11)
