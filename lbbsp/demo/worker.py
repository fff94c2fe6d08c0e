"""One rank of the demo under PyTorch: torchrun starts it as `python -m lbbsp.demo.worker FOLDER`.

Makes the copies of the model and says what an iteration of one is; blocks.py runs them.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lbbsp.demo import blocks, model, records
from lbbsp.demo.blocks import Blocks, Measured
from lbbsp.demo.lanes import BalancedLane, ForcedLane, Lane, Slices
from lbbsp.demo.records import EQUAL, FIXED, Settings
from lbbsp.demo.stopwatch import Stopwatch

LET_GO_S = 0.1
"""gloo's thread lets go of the last barrier's tensors by then; in an interpreter that ends it would abort (torch 2.13,
in any program whose last collective is that close to its end)."""


class Iteration:
    """One iteration of a lane, timed alike for all."""

    def __init__(self) -> None:
        self._watches: dict[Lane, Stopwatch] = {}

    def __call__(self, lane: Lane) -> Measured:
        """Draw, forward, backward, update."""
        watch = self._watches.setdefault(lane, Stopwatch(lane.ddp.module))
        watch.begin()
        batch = next(lane.batches)
        watch.drawn()
        lane.optimizer.zero_grad()
        loss, start = lane.loss(batch)
        start.backward()  # type: ignore[no-untyped-call]
        watch.reduced()
        lane.optimizer.step()
        value = float(loss.detach())
        return Measured(len(batch[0]), *watch.end(), value)


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
        blocks.wait_for_go(folder, rank)
        runner: Blocks[Lane] = Blocks(file, Iteration(), dist.barrier)
        blocks.train(runner, lanes.equal, lanes.balanced, lanes.fixed, lanes.fixed.force, settings, _agreed)
        dist.barrier()
    dist.destroy_process_group()
    time.sleep(LET_GO_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
