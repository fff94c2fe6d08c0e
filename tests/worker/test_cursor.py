"""Rules 2 and 5 without chunks: draws take their order exactly, and batch j follows the sizes at draw j - L."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mesh import Reading

from lbbsp.worker.cursor import Cursor, Epoch
from lbbsp.worker.vector import Place, Vector


def epoch(samples: int, global_batch: int, drop_last: bool = False, key: int = 0) -> Epoch:
    return Epoch(key, np.arange(samples)[::-1], 99, global_batch, drop_last)


def sizes_of(seed: int, ranks: int, total: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.multinomial(total, random.dirichlet(np.full(ranks, 0.5)))


@given(
    ranks=st.integers(1, 4),
    samples=st.integers(0, 60),
    batch=st.integers(1, 12),
    drop_last=st.booleans(),
    seed=st.integers(0, 10**6),
    first=st.integers(0, 3),
    lookaheads=st.lists(st.integers(0, 4), min_size=4, max_size=4),
)
def test_all_ranks_together_take_each_draws_positions_once(
    ranks: int, samples: int, batch: int, drop_last: bool, seed: int, first: int, lookaheads: list[int]
) -> None:
    """Whatever the sizes, and however far each loader reads ahead."""
    one = epoch(samples, batch, drop_last)
    start, most = Vector(sizes_of(seed, ranks, batch)), max(lookaheads[:ranks])
    readings = [Reading(Cursor(one, rank, most, start, first), lookaheads[rank]) for rank in range(ranks)]
    for draw in range(first, one.draws):
        vector = Vector(sizes_of(seed + draw + 1, ranks, batch))
        taken = []
        for reading in readings:
            reading.cursor.at_draw(vector)
            taken += reading.next()
        assert taken == list(range(draw * batch, min(samples, draw * batch + batch)))
    assert all(reading.cursor.finished for reading in readings)
    assert all(reading.cursor.next_part() is None for reading in readings)


@pytest.mark.parametrize("lookahead", [0, 1, 3])
def test_a_batch_follows_the_sizes_in_force_so_many_draws_before(lookahead: int) -> None:
    vectors = [Vector(np.array([draw, 20 - draw]), based_on_iteration=draw) for draw in range(10)]
    start = Vector(np.array([10, 10]))
    reading = Reading(Cursor(epoch(200, 20), 0, lookahead, start), lookahead)
    for draw, vector in enumerate(vectors):
        reading.cursor.at_draw(vector)
        reading.next()
        part = reading.cursor.part()
        wanted = vectors[draw - lookahead] if draw >= lookahead else start
        assert (part.draw, part.samples, part.global_samples) == (draw, wanted.sizes[0], 20)
        assert part.based_on_iteration == wanted.based_on_iteration


def test_a_rank_that_reads_less_far_ahead_follows_the_same_sizes() -> None:
    start = Vector(np.array([10, 10]))
    readings = [Reading(Cursor(epoch(400, 20), 0, 4, start), ahead) for ahead in (0, 2, 4)]
    for draw in range(20):
        for reading in readings:
            reading.cursor.at_draw(Vector(np.array([draw, 20 - draw])))
        first, *others = [reading.next() for reading in readings]
        assert all(other == first for other in others)


@pytest.mark.parametrize(
    ("samples", "drop_last", "draws"), [(0, False, 0), (20, False, 1), (21, False, 2), (39, True, 1)]
)
def test_the_short_last_iteration_counts_unless_it_is_dropped(samples: int, drop_last: bool, draws: int) -> None:
    assert epoch(samples, 20, drop_last).draws == draws


def test_indices_are_those_of_the_epochs_order() -> None:
    cursor = Cursor(epoch(50, 20), 1, 0, Vector(np.array([5, 15])))
    cursor.at_draw(cursor.in_force)
    part = cursor.next_part()
    assert part is not None
    assert cursor.indices(part).tolist() == list(range(44, 29, -1))


def test_a_cursor_says_where_it_is_also_after_a_resume() -> None:
    cursor = Cursor(epoch(100, 20, key=7), 0, 0, Vector(np.array([20])), first_draw=3)
    assert (cursor.drawn, cursor.finished, cursor.place()) == (0, False, Place(7, 2, 99))
    cursor.at_draw(cursor.in_force)
    assert (cursor.drawn, cursor.finished, cursor.place()) == (1, False, Place(7, 3, 99))
    cursor.at_draw(cursor.in_force)
    assert (cursor.drawn, cursor.finished) == (2, True)
