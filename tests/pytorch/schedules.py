"""Random training programs on real ranks: peeks, breaks, second iterators, accumulation, resumes, unequal workers."""

import time
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from epochs import Numbers
from random_manager import travel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from lbbsp.adapters.pytorch import balance

ITERATIONS, WINDOW = 64, 16
"""Iterations of a schedule; with faults, then as many without."""


def quiet(iteration: int) -> bool:
    """Whether nothing goes wrong in this iteration."""
    return iteration // WINDOW % 2 == 1


@dataclass(frozen=True)
class Schedule:
    """What one seed means for all ranks."""

    seed: int
    iterations: int
    world_size: int
    local_batch: int
    samples: int
    workers: tuple[int, ...]
    chunks: str
    reductions: int
    peeks: float

    @staticmethod
    def of(seed: int) -> "Schedule":
        random = Random(seed)
        world_size = random.choice([2, 2, 3])
        local_batch = random.randint(3, 8)
        return Schedule(
            seed=seed,
            iterations=ITERATIONS,
            world_size=world_size,
            local_batch=local_batch,
            samples=random.randint(6, 14) * local_batch * world_size + random.randint(0, 5),
            workers=tuple(random.choice([0, 0, 1, 2]) for _ in range(world_size)),
            chunks=random.choice(["auto", "off"]),
            reductions=random.choice([1, 1, 2]),
            peeks=random.choice([0.03, 0.15]),
        )


@dataclass
class Account:
    """What one rank saw."""

    sizes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    based_on: set[int] = field(default_factory=set)
    draws: list[tuple[int, list[int]]] = field(default_factory=list)
    """Epoch and samples of each joint draw."""
    wrongly_weighted: int = 0
    peeks: int = 0
    resumes: int = 0


class Program:
    """The loop of one rank; what `joint` decides is alike on all ranks."""

    def __init__(self, rank: int, schedule: Schedule) -> None:
        self.schedule = schedule
        self.joint, self.own = Random(schedule.seed), Random(schedule.seed * 1009 + rank + 1)
        data = Numbers(schedule.samples)
        self.sampler = DistributedSampler(data, schedule.world_size, rank)
        loader = DataLoader(
            data, batch_size=schedule.local_batch, sampler=self.sampler, num_workers=schedule.workers[rank]
        )
        model = DistributedDataParallel(torch.nn.Linear(1, 1))
        self.model, self.loader = balance(model, loader, min_samples=0, chunks=schedule.chunks)
        if rank == 0:
            self._travel()
        self.account = Account()
        self.done = 0
        self._kept: list[Any] = []

    def run(self) -> Account:
        epoch = 0
        while self.done < self.schedule.iterations:
            self.sampler.set_epoch(epoch)
            if self._iterate(iter(self.loader), epoch):
                epoch += 1
            elif self.joint.random() < 0.4:
                self.loader.load_state_dict(self.loader.state_dict())
                self.account.resumes += 1
            else:
                epoch += 1
        self._kept.clear()
        self.loader.balancer.close()
        return self.account

    def _travel(self) -> None:
        balancer = self.loader.balancer
        relay, reduced = balancer.follower.channel, balancer._gradients._reduced

        def travelled() -> None:
            travel(relay, quiet(relay._sequence))
            reduced()

        balancer._gradients._reduced = travelled

    def _iterate(self, iterator: Any, epoch: int) -> bool:
        while True:
            self._perhaps_peek()
            for _ in range(self.joint.choice([1, 1, 1, 2])):
                try:
                    batch = self._draw(iterator, epoch)
                except StopIteration:
                    return True
            self._perhaps_peek()
            self._reduce(batch)
            self.done += 1
            if self.done >= self.schedule.iterations or self.joint.random() < 0.05:
                return False
            if self.joint.random() < 0.03:
                self._second(epoch)

    def _second(self, epoch: int) -> None:
        """All ranks train on another iterator for a while, from the start of the epoch."""
        other = iter(self.loader)
        for _ in range(self.joint.randint(1, 3)):
            self._reduce(self._draw(other, -1))

    def _draw(self, iterator: Any, epoch: int) -> Any:
        batch = next(iterator)
        balancer = self.loader.balancer
        self.account.draws.append((epoch, batch.tolist()))
        in_force = balancer.follower.in_force
        self.account.sizes[balancer.follower.reductions] = tuple(in_force.sizes.tolist())
        self.account.based_on.add(in_force.based_on_iteration)
        whole = self.schedule.local_batch * self.schedule.world_size
        there = min(whole, self.schedule.samples - whole * iterator._cursor.newest)
        share = self.schedule.world_size * len(batch) / there
        self.account.wrongly_weighted += abs(balancer._gradients.weight - share) > 1e-12
        return batch

    def _reduce(self, batch: Any) -> None:
        time.sleep(0.004 + 0.004 * self.own.random())
        for _ in range(self.schedule.reductions):
            self.model(batch.to(torch.float32).reshape(-1, 1)).mean().backward()
        time.sleep(0.002)  # an optimizer

    def _perhaps_peek(self) -> None:
        if self._kept and self.own.random() < 0.5:
            self._kept.pop()
        if self.own.random() < self.schedule.peeks:
            self.account.peeks += 1
            peek = iter(self.loader)
            if self.own.random() < 0.9:
                next(peek)
            if self.own.random() < 0.3:
                self._kept.append(peek)


def follow(rank: int, schedule: Schedule) -> Account:
    return Program(rank, schedule).run()
