"""The run of a demo, the same for every framework: warm-up, sweep for the yardstick, then blocks in alternation.

Writes one row an iteration; what an iteration does comes in as a function. Knows no framework. Times in seconds.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TextIO, TypeVar

from lbbsp.demo import records, sweep
from lbbsp.demo.records import COMPARE, SWEEP, WARM_UP, Row, Settings

SETTLING = 3
"""Iterations at the start of a block that are not measured: caches fill, new sizes are tuned for."""
GO_POLL_S = 0.05


class Measured(NamedTuple):
    """One iteration of one rank; fields as in a Row."""

    samples: int
    iteration_s: float
    own_s: float
    wait_s: float
    draw_s: float
    loss: float


class Lane(Protocol):
    """One copy of the model, with its place in the data."""

    name: str
    sizes: tuple[int, ...] | None
    """Of all ranks, where they are forced."""
    iterations: int
    """Made so far."""

    @property
    def lag(self) -> int:
        """As in a Row."""


L = TypeVar("L", bound=Lane)


class Blocks(Generic[L]):
    """Runs blocks of one lane at a time.

    Args:
        file: for the rows.
        iterate: one iteration of a lane.
        barrier: returns when all ranks have come so far.
    """

    def __init__(self, file: TextIO, iterate: Callable[[L], Measured], barrier: Callable[[], None]) -> None:
        self._file, self._iterate, self._barrier = file, iterate, barrier
        self._number = 0

    def run(self, lane: L, iterations: int, phase: str) -> list[float]:
        """Train for some iterations; the time of each, the first ones left out."""
        self._barrier()
        times_s = [self._one(lane, phase, number < SETTLING) for number in range(iterations)]
        self._number += 1
        return times_s[SETTLING:]

    def _one(self, lane: L, phase: str, settling: bool) -> float:
        measured = self._iterate(lane)
        records.write(
            self._file,
            Row(
                phase=phase,
                mode=lane.name,
                block=self._number,
                iteration=lane.iterations,
                sizes=lane.sizes,
                settling=settling,
                lag=lane.lag,
                **measured._asdict(),
            ),
        )
        lane.iterations += 1
        return measured.iteration_s


def train(
    blocks: Blocks[L],
    equal: L,
    balanced: L,
    fixed: L,
    force: Callable[[tuple[int, ...]], None],
    settings: Settings,
    agreed: Callable[[list[float]], list[float]],
) -> None:
    """The whole run.

    Args:
        blocks: of these lanes.
        equal: trains with equal sizes.
        balanced: with LB-BSP's.
        fixed: tries splits, then trains with the best one.
        force: sets the sizes of `fixed`.
        settings: how many blocks, and how long.
        agreed: rank 0's values on all ranks, so that all choose alike.
    """
    for lane in (equal, fixed, balanced):
        blocks.run(lane, 2 * SETTLING, WARM_UP)

    def times_s(sizes: tuple[int, ...], iterations: int) -> list[float]:
        force(sizes)
        return agreed(blocks.run(fixed, iterations + SETTLING, SWEEP))

    force(sweep.best_sizes(times_s, settings.global_batch, settings.slow_rank))
    order = [equal, balanced, fixed]
    for number in range(settings.blocks):
        for compared in order if number % 2 == 0 else reversed(order):
            blocks.run(compared, settings.block_iterations, COMPARE)


def wait_for_go(folder: Path, rank: int) -> None:
    """Say that this rank is there; return when the controller has made the workers unequal."""
    (folder / f"pid{rank}").write_text(str(os.getpid()))
    while not (folder / "go").exists():
        time.sleep(GO_POLL_S)
