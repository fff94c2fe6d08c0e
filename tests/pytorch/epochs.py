"""Cases that walk over epochs of a data set of numbers, so that a test can see which rank took what, and when."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from lbbsp.adapters.pytorch import balance


class Numbers(Dataset[int]):
    """Sample i is i; one index may be broken."""

    def __init__(self, samples: int, broken: int | None = None) -> None:
        self.samples, self.broken = samples, broken

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        if index == self.broken:
            raise LookupError(f"sample {index} is broken")
        return index


class Backwards(Sampler[int]):
    """A sampler of the user's own, with the order decided by nothing."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.samples - 1, -1, -1))


@dataclass(frozen=True)
class Plan:
    """What to walk over, and how."""

    samples: int = 206
    local_batch: int = 8
    sampler: str = "distributed"
    workers: tuple[int, ...] = (0,)
    """Loader workers of each rank; the last one stands for all further ranks."""
    epochs: int = 3
    drop_last: bool = False
    broken: int | None = None
    loader: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=lambda: {"min_samples": 0})

    def order(self, epoch: int) -> list[int] | None:
        """The order that the epoch must have; None where only we can know."""
        if self.sampler == "distributed":
            generator = torch.Generator().manual_seed(epoch)
            return torch.randperm(self.samples, generator=generator).tolist()
        if self.sampler == "backwards":
            return list(range(self.samples - 1, -1, -1))
        return list(range(self.samples)) if self.sampler in ("sequential", "unshuffled") else None


@dataclass
class Walk:
    """One rank's loop: its loader, and what came of each epoch."""

    loader: Any
    model: Any
    sampler: Any
    seen: dict[int, list[list[int]]] = field(default_factory=dict)
    """Of each epoch the batches of this rank."""

    def train(self, batch: Any, epoch: int) -> None:
        self.seen.setdefault(epoch, []).append([int(index) for index in batch])
        self.model(batch.to(torch.float32).reshape(-1, 1)).mean().backward()

    def epoch(self, number: int, stop_after: int | None = None) -> None:
        """Iterate over one epoch, or its first draws."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(number)
        self.seen.setdefault(number, [])
        for done, batch in enumerate(self.loader, 1):
            self.train(batch, number)
            if done == stop_after:
                break


def walk(rank: int, world_size: int, plan: Plan) -> Walk:
    """Set up as a user would."""
    torch.manual_seed(1 if plan.sampler != "random" else rank)
    data = Numbers(plan.samples, plan.broken)
    samplers = {
        "distributed": lambda: DistributedSampler(data, world_size, rank),
        "unshuffled": lambda: DistributedSampler(data, world_size, rank, shuffle=False),
        "random": lambda: RandomSampler(data),
        "generator": lambda: RandomSampler(data, generator=torch.Generator().manual_seed(rank)),
        "sequential": lambda: SequentialSampler(data),
        "weighted": lambda: WeightedRandomSampler([1.0 + i for i in range(plan.samples)], plan.samples),
        "backwards": lambda: Backwards(plan.samples),
        "shuffle": lambda: None,
    }
    sampler = samplers[plan.sampler]()
    loader = DataLoader(
        data,
        batch_size=plan.local_batch,
        sampler=sampler,
        shuffle=True if plan.sampler == "shuffle" else None,
        num_workers=plan.workers[min(rank, len(plan.workers) - 1)],
        drop_last=plan.drop_last,
        **plan.loader,
    )
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    model, loader = balance(model, loader, **plan.options)
    return Walk(loader, model, sampler)


def epochs(rank: int, world_size: int, plan: Plan) -> dict[int, list[list[int]]]:
    """All epochs."""
    walked = walk(rank, world_size, plan)
    for number in range(plan.epochs):
        walked.epoch(number)
    walked.loader.balancer.close()
    return walked.seen


def part(rank: int, world_size: int, plan: Plan, state: Any, epoch: int, draws: int) -> tuple[Any, Any]:
    """Go on from a state for some draws, past the end of an epoch too; return the new state."""
    walked = walk(rank, world_size, plan)
    if state is not None:
        walked.loader.load_state_dict(state)
    left = draws
    while left > 0:
        before = sum(map(len, walked.seen.values()))
        walked.epoch(epoch, left)
        left -= sum(map(len, walked.seen.values())) - before
        epoch += left > 0
    state = walked.loader.state_dict()
    walked.loader.balancer.close()
    return walked.seen, state


def reloads(rank: int, world_size: int, plan: Plan, stops: list[int]) -> dict[int, list[list[int]]]:
    """Several resumes within each epoch, in one process."""
    walked = walk(rank, world_size, plan)
    for number in range(plan.epochs):
        for stop in stops:
            walked.epoch(number, stop)
            state = walked.loader.state_dict()
            if stop % 2:  # what was fetched or drawn after the state does not count
                for batch in walked.loader:
                    walked.model(batch.to(torch.float32).reshape(-1, 1)).mean().backward()
                    break
            walked.loader.load_state_dict(state)
        walked.epoch(number)
    walked.loader.balancer.close()
    return walked.seen
