"""In a rest a rank says where it is at those reductions alone that a message follows: nobody compares it at others."""

from dataclasses import replace

import numpy as np
import pytest
from test_follower import START, Loop, Played, hello_of

from lbbsp.errors import OutOfStepError
from lbbsp.worker.vector import Place, Vector

REST = 3


class Resting(Played):
    """A message after each fourth reduction, which opens a rest of three."""

    def __init__(self) -> None:
        super().__init__()
        self.reductions_over = 0

    def reduction(self, event) -> None:
        self.events.append(event)
        if event.sequence > self.newest.holds_through:
            self.newest = replace(self.newest, sequence=event.sequence, version=event.sequence, rest=REST)

    def reduced(self) -> None:
        self.reductions_over += 1


@pytest.fixture
def loop() -> Loop:
    made = Loop()
    made.channel = made.follower.channel = Resting()
    return made


def told(loop: Loop) -> list[int]:
    return [event.sequence for event in loop.channel.events if event.places]


def test_places_are_told_where_a_message_follows(loop: Loop) -> None:
    loop.iterate(10)
    assert told(loop) == [1, 5, 9]
    assert [event.places[0].draw for event in loop.channel.events if event.places] == [0, 4, 8]
    assert loop.channel.reductions_over == 3


def test_every_iteration_of_a_rest_is_reported(loop: Loop) -> None:
    loop.iterate(10)
    assert [report.iteration for report in loop.reports] == list(range(1, 11))
    assert [report.wait_s for report in loop.reports[1:]] == pytest.approx([0.05] * 9)


def test_waits_that_nobody_counts_are_no_pause_and_a_validation_is(loop: Loop) -> None:
    loop.iterate(6)
    assert [event.paused_s for event in loop.channel.events[1:]] == pytest.approx([0.0] * 5)
    loop.clock.now_s += 60.0
    loop.iterate(2)
    assert [event.paused_s for event in loop.channel.events[6:]] == pytest.approx([60.0, 0.0])


def test_after_a_resume_in_a_rest_places_are_told_at_once(loop: Loop) -> None:
    loop.iterate(6)
    loop.follower.fall_back(START, hello_of("i.1"), 100)
    loop.channel.newest = replace(START, sequence=6)
    loop.cursor = loop.begin(1)
    loop.iterate(2)
    assert told(loop) == [1, 5, 7]


def test_a_rank_that_finds_itself_elsewhere_after_a_rest_raises(loop: Loop) -> None:
    loop.iterate(5)
    loop.channel.places = (Place(0, 3, 5),)
    with pytest.raises(OutOfStepError, match="rank 0 is at epoch 0 draw 4, rank 0 at epoch 0 draw 3"):
        loop.draw()


def test_the_same_sizes_again_in_a_new_message_are_compared_anew(loop: Loop) -> None:
    loop.iterate(4)
    loop.draw()
    loop.reduce()
    loop.channel.newest = Vector(np.array([10, 10]), 5, 5)
    loop.channel.places = (Place(1, 4, 5),)
    with pytest.raises(OutOfStepError):
        loop.draw()
