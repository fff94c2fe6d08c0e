"""Rule 5 with chunks: pieces cover exactly a rank's part, whatever changed between a task's making and its draw."""

import itertools
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from mesh import ChunkReading

from lbbsp.worker.chunked import Ahead, ChunkedCursor
from lbbsp.worker.cursor import Epoch
from lbbsp.worker.vector import Vector

RANKS = 3
AHEAD = st.tuples(st.integers(1, 3), st.integers(0, 4))


def shared(random: np.random.Generator, total: int) -> np.ndarray:
    return random.multinomial(total, random.dirichlet(np.full(RANKS, 0.7)))


def vectors(seed: int, batch: int, count: int) -> list[Vector]:
    random = np.random.default_rng(seed)
    return [Vector(shared(random, batch), homes=shared(random, batch)) for _ in range(count)]


def cursors(samples: int, batch: int, aheads: list[tuple[int, int]], start: Vector, first: int = 0) -> list[Any]:
    epoch = Epoch(0, np.random.default_rng(5).permutation(samples), 1, batch)
    most = max(depth for _, depth in aheads)
    return [ChunkedCursor(epoch, rank, Ahead(*one, most), start, first) for rank, one in enumerate(aheads)]


def readings_of(made: list[Any]) -> list[ChunkReading]:
    return [ChunkReading(cursor, cursor._ahead) for cursor in made]


@given(
    samples=st.integers(0, 120),
    batch=st.integers(1, 20),
    aheads=st.lists(AHEAD, min_size=RANKS, max_size=RANKS),
    seed=st.integers(0, 10**6),
    first=st.integers(0, 2),
)
def test_pieces_cover_each_draw_once_under_any_sizes_homes_and_depths(
    samples: int, batch: int, aheads: list[tuple[int, int]], seed: int, first: int
) -> None:
    start, *later = vectors(seed, batch, samples // batch + 3)
    made = cursors(samples, batch, aheads, start, first)
    readings = readings_of(made)
    for draw in range(first, made[0].epoch.draws):
        vector = later[draw]
        taken = []
        for reading in readings:
            reading.cursor.at_draw(vector)
            taken.append(reading.next())
        there = min(batch, samples - draw * batch)
        assert sorted(itertools.chain(*taken)) == list(range(draw * batch, draw * batch + there))
        if there == batch:
            assert [len(one) for one in taken] == vector.sizes.tolist()
    assert all(cursor.next_task() is None for cursor in made if cursor._ahead.depth)


@given(st.lists(AHEAD, min_size=RANKS, max_size=RANKS), st.integers(0, 10**6))
def test_a_task_is_made_no_more_than_the_depth_before_its_draw(aheads: list[tuple[int, int]], seed: int) -> None:
    batch, draws = 12, 10
    start, *later = vectors(seed, batch, draws + 1)
    made = cursors(batch * draws, batch, aheads, start)
    readings = readings_of(made)
    for draw in range(draws):
        for reading, (tasks, depth) in zip(readings, aheads, strict=True):
            reading.cursor.at_draw(later[draw])
            reading.next()
            waiting = [task for task in reading._queue if task.samples]
            assert len(reading._queue) <= tasks * depth
            assert all(
                draw * batch < stop <= (draw + 1 + depth) * batch for task in waiting for _, stop in task.intervals
            )


def test_what_was_fetched_is_taken_late_or_in_vain() -> None:
    start, *later = vectors(3, 20, 11)
    (cursor, *_), fetched, taken = cursors(200, 20, [(2, 3)] * RANKS, start), 0, 0
    reading = readings_of([cursor])[0]
    for vector in later:
        cursor.at_draw(vector)
        fetched += sum(task.samples for task in list(reading._queue)[:2])
        taken += len(reading.next())
    assert fetched == taken - cursor.fetched_late + cursor.fetched_in_vain
    assert cursor.fetched_late > 0


def test_steady_sizes_at_home_fetch_nothing_late_or_in_vain() -> None:
    start = Vector(np.array([5, 10, 5]))
    for reading in readings_of(cursors(190, 20, [(2, 3), (1, 1), (3, 2)], start)):
        for _ in range(10):
            reading.cursor.at_draw(start)
            reading.next()
        assert (reading.cursor.fetched_late, reading.cursor.fetched_in_vain) == (0, 0)


def test_without_loader_workers_all_is_fetched_at_the_draw() -> None:
    start, *later = vectors(4, 20, 6)
    cursor = cursors(100, 20, [(1, 0), (2, 4), (1, 1)], start)[0]
    for vector in later:
        cursor.at_draw(vector)
        assert cursor.tasks_of_draw() == []
        assert all(piece.task is None for piece in cursor.pieces([]))
    assert cursor.fetched_late == sum(int(vector.sizes[0]) for vector in later)


def test_a_change_of_others_sizes_leaves_what_was_fetched_at_home_in_use() -> None:
    """Rank 1 keeps its size while the others swap theirs: nothing of its own is lost."""
    start = Vector(np.array([6, 8, 6]))
    reading = readings_of(cursors(200, 20, [(1, 4)] * RANKS, start)[1:2])[0]
    for draw in range(10):
        swing = 6 if draw % 2 else -6
        reading.cursor.at_draw(Vector(np.array([6 + swing, 8, 6 - swing]), homes=start.homes))
        reading.next()
    assert (reading.cursor.fetched_late, reading.cursor.fetched_in_vain) == (0, 0)


def test_homes_take_effect_at_the_largest_depth_of_any_rank() -> None:
    start, moved = Vector(np.array([10, 5, 5])), Vector(np.array([10, 5, 5]), homes=np.array([4, 8, 8]))
    cursor = cursors(200, 20, [(1, 2), (1, 4), (1, 0)], start)[0]
    reading, starts = readings_of([cursor])[0], []
    for _ in range(7):
        cursor.at_draw(moved)
        starts.append(len(cursor._intervals(cursor.newest, moved)))
        reading.next()
    assert starts == [1, 1, 1, 1, 3, 3, 3], "its home, then a smaller home and what both others leave"


def test_indices_are_those_of_the_epochs_order() -> None:
    cursor = cursors(40, 20, [(1, 0)] * RANKS, Vector(np.array([20, 0, 0])))[0]
    assert cursor.indices_of([(3, 5), (7, 8)]) == [int(cursor.epoch.order[at]) for at in (3, 4, 7)]
