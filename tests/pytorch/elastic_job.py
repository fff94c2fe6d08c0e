"""A job for torchrun that may lose ranks: each rank is pinned to a core, and cores differ in speed.

Where a rank is pinned depends on --places and on how often the job has restarted, so that ranks change places as they
do on a cluster. Each iteration is one line in a file of this process.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from lbbsp.adapters.pytorch import balance

sys.path.append(str(Path(__file__).parents[1] / "worker"))

from random_manager import let_plans_come_in_time

SECONDS_A_SAMPLE = (0.0005, 0.002)
"""Of each place."""


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), float(index % 7)), index


class Slow(nn.Module):
    """A linear layer that takes its time: on the core it runs on, and on what it is given."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.sample_s = SECONDS_A_SAMPLE[place]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(self.sample_s * len(inputs))
        return self.layer(inputs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--places", default="01,10", help="place of each local rank, in each restart")
    parser.add_argument("--die", default="", help="RESTART:RANK:ITERATION")
    parser.add_argument("--until", type=Path, help="go on until this file is there")
    arguments = parser.parse_args()
    restart, local = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["LOCAL_RANK"])
    places = arguments.places.split(",")
    place = int(places[min(restart, len(places) - 1)][local])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[place % len(cores)]})
    torch.set_num_threads(1)
    let_plans_come_in_time()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Slow(place))
    data = Numbers()
    loader = DataLoader(data, 16, sampler=DistributedSampler(data))
    model, loader = balance(model, loader)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    state = arguments.out / "state.json"
    if state.exists() and hasattr(loader, "load_state_dict"):
        loader.load_state_dict(json.loads(state.read_text()))
    with (arguments.out / f"{restart}-{rank}-{os.getpid()}").open("w", buffering=1) as lines:
        for number, (inputs, indices) in enumerate(loader):
            if arguments.die == f"{restart}:{rank}:{number}":
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            model(inputs).mean().backward()
            optimizer.step()
            row = {"number": number, "world": dist.get_world_size(), "place": place, "indices": indices.tolist()}
            lines.write(json.dumps(row) + "\n")
            if rank == 0 and hasattr(loader, "state_dict"):
                part = state.with_suffix(".part")
                part.write_text(json.dumps(loader.state_dict()))
                part.replace(state)
            if arguments.until is None and number + 1 == arguments.iterations:
                break
            if arguments.until is not None and _all(arguments.until.exists()):
                break
    dist.destroy_process_group()
    sys.exit(0)


def _all(here: bool) -> bool:
    flag = torch.tensor([int(here)])
    dist.all_reduce(flag, dist.ReduceOp.MIN)
    return bool(flag)


if __name__ == "__main__":
    main()
