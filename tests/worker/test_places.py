"""Which iterator training follows: a peek moves nothing, whether it dies at once, draws once, or lives on."""

import numpy as np
import pytest

from lbbsp.worker.cursor import Cursor, Epoch
from lbbsp.worker.places import Places
from lbbsp.worker.vector import PLACES, Vector

START = Vector(np.array([10]))


def cursor(key: int = 0, first: int = 0) -> Cursor:
    return Cursor(Epoch(key, np.arange(200), key, 10), 0, 0, START, first)


class Loop:
    """Draws and reduces as a loop does."""

    def __init__(self) -> None:
        self.places = Places()

    def draw(self, one: Cursor) -> Cursor:
        one.at_draw(START)
        one.next_part()
        self.places.drawn(one)
        one.undone.append((one.part(), 0.0))
        return one

    def train(self, one: Cursor, draws: int = 1) -> Cursor:
        for _ in range(draws):
            self.draw(one)
            self.places.take()
            self.places.reduced()
        return one


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_nothing_was_drawn(loop: Loop) -> None:
    assert loop.places.main is None
    assert loop.places.now() == ()
    assert loop.places.take() == []
    assert loop.places.first_draw == 0


def test_training_follows_the_iterator_that_it_draws_from(loop: Loop) -> None:
    one = loop.train(cursor(first=4), 2)
    assert loop.places.main is one
    assert loop.places.now() == (one.place(),)
    assert loop.places.first_draw == 4


def test_the_next_epoch_leads_when_the_one_before_has_ended(loop: Loop) -> None:
    loop.places.forget(loop.train(cursor(), 3))
    second = loop.draw(cursor(1))
    assert loop.places.main is second


@pytest.mark.parametrize("lives", [True, False])
def test_a_peek_before_the_first_draw_does_not_lead_training(loop: Loop, lives: bool) -> None:
    peek = loop.draw(cursor())
    if not lives:
        loop.places.forget(peek)
    main = loop.train(cursor(), 2)
    assert loop.places.main is main


@pytest.mark.parametrize("lives", [True, False])
def test_a_peek_between_draw_and_reduction_leaves_the_batch_under_way(loop: Loop, lives: bool) -> None:
    main = loop.train(cursor(), 3)
    loop.draw(main)
    peek = loop.draw(cursor())
    if not lives:
        loop.places.forget(peek)
    assert loop.places.main is main
    assert loop.places.now()[0] == main.place()
    assert [part.draw for part, _ in loop.places.take()] == [3]


@pytest.mark.parametrize("lives", [True, False])
def test_after_a_peek_between_iterations_training_goes_on_where_it_was(loop: Loop, lives: bool) -> None:
    main = loop.train(cursor(), 3)
    peek = loop.draw(cursor())
    if not lives:
        loop.places.forget(peek)
        assert loop.places.main is main
    loop.draw(main)
    assert loop.places.main is main
    assert [part.draw for part, _ in loop.places.take()] == [3]


def test_a_peek_that_dies_when_training_has_gone_on_changes_nothing(loop: Loop) -> None:
    main = loop.train(cursor(), 3)
    peek = loop.draw(cursor())
    loop.train(main)
    loop.places.forget(peek)
    assert loop.places.main is main


def test_a_second_iterator_leads_while_all_train_on_it_and_then_the_first_again(loop: Loop) -> None:
    first = loop.train(cursor(), 3)
    second = loop.train(cursor(), 2)
    assert loop.places.main is second
    loop.places.forget(second)
    assert loop.places.main is first
    loop.train(first)
    assert loop.places.main is first


def test_an_iterator_that_has_ended_is_kept_for_the_state(loop: Loop) -> None:
    main = loop.train(cursor(), 3)
    loop.places.forget(main)
    assert loop.places.main is main


def test_drawing_from_two_iterators_in_one_iteration_is_noted_until_it_is_closed(loop: Loop) -> None:
    main = loop.draw(cursor())
    assert not loop.places.mixed
    loop.draw(cursor())
    assert loop.places.mixed
    loop.places.take()
    loop.train(main)
    assert not loop.places.mixed


def test_what_was_drawn_for_an_iteration_is_taken_once(loop: Loop) -> None:
    main = cursor()
    loop.draw(main)
    loop.draw(main)
    assert [part.draw for part, _ in loop.places.take()] == [0, 1]
    assert loop.places.take() == []


def test_no_more_places_are_told_than_a_payload_holds(loop: Loop) -> None:
    cursors = [loop.draw(cursor(key)) for key in range(PLACES + 3)]
    now = loop.places.now()
    assert len(now) == PLACES
    assert loop.places.main in cursors
    assert len(set(now)) == PLACES
