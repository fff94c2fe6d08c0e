"""One rank of a job in chaos: trains a tiny model, keeps a checkpoint, goes on from it when torchrun starts it again.

Run by torchrun with --run-path. Each rank writes lines as it goes: where it began, each draw, each gradient that its
optimizer saw, the weights at the end. Own time changes with the rank and with time. Seconds, samples.
"""

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from lbbsp.adapters.pytorch import balance

WIDTH = 5
RATE = 0.05
PR_SET_PDEATHSIG = 1
TAIL_S = 0.004
"""An optimizer's time."""


@dataclass(frozen=True)
class Program:
    """What all ranks of a job run."""

    seed: int
    steps: int = 110
    samples: int = 206
    local_batch: int = 8
    draws: int = 1
    """Of a step; gradients of all but the last are accumulated under no_sync."""
    every: int = 3
    """Steps between checkpoints."""
    loader_workers: int = 0
    min_samples: int = 1
    claims: bool = False
    sample_s: float = 0.0008

    @property
    def global_batch(self) -> int:
        """Of two ranks."""
        return 2 * self.local_batch

    @property
    def draws_of_epoch(self) -> int:
        """The last one may be short."""
        return -(-self.samples // self.global_batch)

    def order(self, epoch: int) -> list[int]:
        """As DistributedSampler draws it."""
        return torch.randperm(self.samples, generator=torch.Generator().manual_seed(epoch)).tolist()

    def text(self) -> str:
        """As an argument."""
        return json.dumps(asdict(self))


class Table(Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """Sample i follows from i and the seed."""

    def __init__(self, program: Program) -> None:
        generator = torch.Generator().manual_seed(program.seed)
        self.inputs = torch.randn(program.samples, WIDTH, generator=generator, dtype=torch.float64)
        self.targets = torch.randn(program.samples, 1, generator=generator, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.inputs[index], self.targets[index], index


def end_with_the_rank(worker: int) -> None:
    """A loader worker holds its rank's sockets, and looks for its rank only each 5 s: torchrun would wait as long."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def network(program: Program) -> nn.Module:
    """The same at each start, also where threads make several at once: torch's own generator is one for them all."""
    generator = torch.Generator().manual_seed(program.seed)
    made = nn.Sequential(nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, 1)).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.uniform_(-0.5, 0.5, generator=generator)
    return made


def loss_of(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean squared error."""
    return ((output - targets) ** 2).mean()


def flat(tensors: Any) -> list[float]:
    """All their values."""
    return torch.cat([one.detach().reshape(-1) for one in tensors]).tolist()


class Pace:
    """Seconds a sample on this rank: changes now and then."""

    def __init__(self, program: Program, rank: int) -> None:
        self._random = Random(program.seed * 2 + rank)
        self._base_s, self._factor = program.sample_s, 1.0

    def work(self, samples: int) -> None:
        """Take as long as these samples do here and now."""
        if self._random.random() < 0.06:
            self._factor = self._random.choice([1.0, 1.5, 3.0])
        time.sleep(0.001 + self._base_s * self._factor * samples)


class Lines:
    """A file of this process; what was written stays when it is killed."""

    def __init__(self, folder: Path, rank: int) -> None:
        name = f"{os.environ['TORCHELASTIC_RESTART_COUNT']}-{rank}-{os.getpid()}"
        self._file = os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def write(self, **row: Any) -> None:
        """One line, at once."""
        os.write(self._file, json.dumps({"at_s": time.perf_counter()} | row).encode() + b"\n")


class Loop:
    """The training loop of one rank."""

    def __init__(self, program: Program, folder: Path) -> None:
        self.program, self.folder = program, folder
        self.rank = dist.get_rank()
        data = Table(program)
        self.raw = network(program)
        self.sampler = DistributedSampler(data)
        loader = DataLoader(
            data, program.local_batch, sampler=self.sampler, num_workers=program.loader_workers,
            worker_init_fn=end_with_the_rank if program.loader_workers else None,
        )  # fmt: skip
        self.model, self.loader = balance(
            DistributedDataParallel(self.raw), loader, min_samples=program.min_samples, claims=program.claims
        )  # fmt: skip
        self.optimizer = torch.optim.SGD(self.raw.parameters(), lr=RATE, momentum=0.9)
        self.step, self.epoch = 0, 0
        self.pace = Pace(program, self.rank)
        self.lines = Lines(folder, self.rank)

    def run(self) -> None:
        """From the checkpoint, if there is one, to the end."""
        self.resume()
        follower = self.loader.balancer.follower
        self.lines.write(begun=self.step, incarnation=follower.hello.incarnation)
        while self.step < self.program.steps:
            self.sampler.set_epoch(self.epoch)
            self.one_epoch()
            self.epoch += 1
        self.lines.write(weights=flat(self.raw.parameters()))
        self.loader.balancer.close()

    def one_epoch(self) -> None:
        """Draws up to the epoch's end, or the job's."""
        within = 0
        for batch in self.loader:
            self.draw_told(within)
            within += 1
            last = within == self.program.draws
            with contextlib.nullcontext() if last else self.model.no_sync():
                for inputs, targets, indices in batch if self.program.claims else (batch,):
                    self.lines.write(step=self.step, draw=within - 1, indices=indices.tolist())
                    self.pace.work(len(inputs))
                    (loss_of(self.model(inputs), targets) / self.program.draws).backward()
            if last:
                within = 0
                self.update()
                if self.step >= self.program.steps:
                    return

    def draw_told(self, within: int) -> None:
        """Write which sizes this draw of the step has."""
        in_force = self.loader.balancer.follower.in_force
        self.lines.write(
            step=self.step, draw=within, sizes=in_force.sizes.tolist(), based_on=in_force.based_on_iteration
        )  # fmt: skip

    def update(self) -> None:
        """One step of the optimizer; then, now and then, a checkpoint."""
        self.lines.write(step=self.step, gradient=flat(one.grad for one in self.raw.parameters()))
        self.optimizer.step()
        self.optimizer.zero_grad()
        time.sleep(TAIL_S)
        self.step += 1
        if self.rank == 0 and self.step % self.program.every == 0:
            self.save()

    def save(self) -> None:
        """The checkpoint, whole or not at all."""
        state = {
            "model": self.raw.state_dict(), "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(), "step": self.step, "epoch": self.epoch,
        }  # fmt: skip
        torch.save(state, self.folder / "checkpoint.part")
        (self.folder / "checkpoint.part").replace(self.folder / "checkpoint")

    def resume(self) -> None:
        """Where the checkpoint was taken."""
        if not (self.folder / "checkpoint").exists():
            return
        state = torch.load(self.folder / "checkpoint")
        self.raw.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])
        self.step, self.epoch = state["step"], state["epoch"]


def main() -> None:
    """One rank."""
    faulthandler.register(signal.SIGUSR1)  # says where it hangs
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    Loop(Program(**json.loads(sys.argv[2])), Path(sys.argv[1])).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
