"""Planned parts of all ranks and the units of the pool cover each iteration once, whatever was fetched ahead."""

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lbbsp.core.parts import WHOLE_PPM
from lbbsp.worker.chunked import Ahead, Task
from lbbsp.worker.cursor import Epoch
from lbbsp.worker.pool import Cutting, PoolCursor
from lbbsp.worker.vector import IntArray, Vector


def split(random: Random, total: int, ranks: int, unit: int = 1) -> IntArray:
    cuts = sorted(random.randrange(0, total // unit + 1) for _ in range(ranks - 1))
    edges = [0, *(cut * unit for cut in cuts), total]
    return np.diff(np.array(edges, dtype=np.int64))


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    ranks=st.integers(1, 6),
    unit=st.integers(1, 4),
    ahead=st.booleans(),
    menu=st.booleans(),
)
def test_parts_and_pool_cover_each_iteration_once(seed: int, ranks: int, unit: int, ahead: bool, menu: bool) -> None:
    random = Random(seed)
    batch = unit * ranks * random.randrange(1, 12)
    samples = random.randrange(1, 4 * batch + 1)
    epoch = Epoch(0, np.random.default_rng(seed).permutation(samples), 0, batch)
    vectors = [
        Vector(
            split(random, batch, ranks, unit),
            sequence=number,
            homes=split(random, batch, ranks, unit),
            beta_ppm=random.choice([0, 300_000, 900_000, WHOLE_PPM]),
            chunk=random.choice([0, 1, 1000]),
        )
        for number in range(epoch.draws + 1)
    ]
    how = Ahead(2, 3, 3) if ahead else Ahead()
    cursors = [PoolCursor(epoch, rank, how, vectors[0], 0, Cutting(unit, menu=menu)) for rank in range(ranks)]
    tasks: list[list[Task]] = [[] for _ in range(ranks)]
    for draw in range(epoch.draws):
        taken: list[int] = []
        for rank, cursor in enumerate(cursors):
            while ahead and (task := cursor.next_task()) is not None and len(tasks[rank]) < 2 * (draw + 3):
                tasks[rank].append(task)
            cursor.at_draw(vectors[draw])
            planned = cursor.planned()
            assert sum(stop - start for start, stop in planned) == cursor.part().samples
            fetched = cursor.tasks_of_draw() if ahead else []
            pieces = cursor.pieces_of(planned, fetched)
            assert [piece.interval for piece in pieces] or not planned
            taken += [place for piece in pieces for place in range(*piece.interval)]
        chunking, first = cursors[0].chunking(), 0
        assert all(cursor.chunking().units == chunking.units for cursor in cursors)
        assert all(cursor.claims == cursors[0].claims for cursor in cursors)
        while first < chunking.units:
            end = min(chunking.units, first + random.randrange(1, 9))
            claimant = random.choice(cursors)
            taken += [place for interval in claimant.claimed(first, end) for place in range(*interval)]
            first = end
        base = draw * batch
        assert sorted(taken) == list(range(base, min(base + batch, samples)))
        for cursor in cursors:
            cursor.forget_homes()
