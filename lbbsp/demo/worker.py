"""One rank of the demo: torchrun starts it as `python -m lbbsp.demo.worker FOLDER`.

Looks for the best fixed split in a sweep, then trains with equal sizes, with LB-BSP and with that split in alternating
blocks. Writes one row an iteration; knows nothing of display or figures.
"""

import os
import sys
import time
from pathlib import Path
from typing import TextIO

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lbbsp.demo import model, records, sweep
from lbbsp.demo.lanes import BalancedLane, ForcedLane, Lane, Slices
from lbbsp.demo.records import COMPARE, EQUAL, FIXED, SWEEP, WARM_UP, Row, Settings
from lbbsp.demo.stopwatch import Stopwatch

SETTLING = 3
"""Iterations at the start of a block that are not measured: caches fill, new sizes are tuned for."""
GO_POLL_S = 0.05


class Runner:
    """Runs blocks of one lane at a time and writes their rows."""

    def __init__(self, rank: int, file: TextIO) -> None:
        self._rank, self._file = rank, file
        self._watches: dict[Lane, Stopwatch] = {}
        self._blocks = 0

    def block(self, lane: Lane, iterations: int, phase: str) -> list[float]:
        """Train for some iterations; the time of each in seconds, the first ones left out."""
        watch = self._watches.setdefault(lane, Stopwatch(lane.ddp.module))
        dist.barrier()
        times_s = [self._iteration(lane, watch, phase, number < SETTLING) for number in range(iterations)]
        self._blocks += 1
        return times_s[SETTLING:]

    def _iteration(self, lane: Lane, watch: Stopwatch, phase: str, settling: bool) -> float:
        watch.begin()
        batch = next(lane.batches)
        watch.drawn()
        lane.optimizer.zero_grad()
        loss, start = lane.loss(batch)
        start.backward()  # type: ignore[no-untyped-call]
        watch.reduced()
        lane.optimizer.step()
        value = float(loss.detach())
        iteration_s, own_s, wait_s, draw_s = watch.end()
        records.write(
            self._file,
            Row(
                phase=phase,
                mode=lane.name,
                block=self._blocks,
                iteration=lane.iterations,
                sizes=lane.sizes,
                settling=settling,
                samples=len(batch[0]),
                iteration_s=iteration_s,
                own_s=own_s,
                wait_s=wait_s,
                draw_s=draw_s,
                loss=value,
                lag=lane.lag,
            ),
        )
        lane.iterations += 1
        return iteration_s


class Lanes:
    """The three copies of the model."""

    def __init__(self, folder: Path, settings: Settings, rank: int) -> None:
        dtype = torch.float64 if settings.float64 else torch.float32
        data = model.dataset(folder / "digits.npz", dtype)
        half = settings.global_batch // records.WORKERS
        side = data.tensors[0].shape[-1]

        def ddp() -> DistributedDataParallel:
            return DistributedDataParallel(model.cnn(settings.seed, side).to(dtype))

        def forced(name: str) -> ForcedLane:
            slices = Slices(len(data), settings.seed, rank, (half,) * records.WORKERS)
            return ForcedLane(name, ddp(), settings.optimizer, data, slices)

        self.equal, self.fixed = forced(EQUAL), forced(FIXED)
        self.balanced = BalancedLane(ddp(), settings.optimizer, data, half, settings.seed)


def train(runner: Runner, lanes: Lanes, settings: Settings) -> None:
    """The whole run: warm-up, sweep, comparison."""
    for lane in (lanes.equal, lanes.fixed, lanes.balanced):
        runner.block(lane, 2 * SETTLING, WARM_UP)

    def times_s(sizes: tuple[int, ...], iterations: int) -> list[float]:
        lanes.fixed.force(sizes)
        return _agreed(runner.block(lanes.fixed, iterations + SETTLING, SWEEP))

    best = sweep.best_sizes(times_s, settings.global_batch, settings.slow_rank)
    lanes.fixed.force(best)
    order: list[Lane] = [lanes.equal, lanes.balanced, lanes.fixed]
    for number in range(settings.blocks):
        for compared in order if number % 2 == 0 else reversed(order):
            runner.block(compared, settings.block_iterations, COMPARE)


def _agreed(values: list[float]) -> list[float]:
    """Rank 0's values, so that all ranks choose alike."""
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.broadcast(tensor, src=0)
    agreed: list[float] = tensor.tolist()
    return agreed


def main(folder: Path) -> None:
    """Join the job, wait for the go, train."""
    rank = int(os.environ["RANK"])
    settings = records.load_settings(folder)
    if settings.cores is not None:
        os.sched_setaffinity(0, {settings.cores[rank]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    lanes = Lanes(folder, settings, rank)
    with records.rows_file(folder, rank).open("w", buffering=1) as file:
        (folder / f"pid{rank}").write_text(str(os.getpid()))
        while not (folder / "go").exists():
            time.sleep(GO_POLL_S)
        train(Runner(rank, file), lanes, settings)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
