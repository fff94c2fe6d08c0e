"""Copies of one model that train side by side: with sizes forced from outside, or with the sizes that LB-BSP decides.

Each is run in blocks and keeps its place in the data between them. All see the same global batches in the same order:
positions [kX, kX + X) of the permutation that a stock DistributedSampler draws.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

from lbbsp.adapters.pytorch import balance
from lbbsp.demo import model
from lbbsp.demo.records import LBBSP, Optimizer

Batch = tuple[torch.Tensor, torch.Tensor]


class Lane:
    """One copy of the model: plain DDP, its optimizer, its own way through the data.

    Args:
        name: what its rows say.
        ddp: the model.
        optimizer: "sgd" or "adamw".
    """

    sizes: tuple[int, ...] | None = None
    batches: Iterator[Batch]
    iterations = 0

    def __init__(self, name: str, ddp: DistributedDataParallel, optimizer: Optimizer) -> None:
        self.name, self.ddp = name, ddp
        self.optimizer = model.optimizer(optimizer, ddp)

    def loss(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean over this rank's samples, and what backward starts from."""
        images, labels = batch
        loss = cross_entropy(self.ddp(images), labels)
        return loss, loss

    @property
    def lag(self) -> int:
        """How old the news behind the newest sizes was; 0 where sizes are forced."""
        return 0


class ForcedLane(Lane):
    """Sizes are set from outside; the mean over the global batch by a factor on the loss, as in any plain loop."""

    def __init__(
        self, name: str, ddp: DistributedDataParallel, optimizer: Optimizer, data: Dataset[Any], batches: "Slices"
    ) -> None:
        super().__init__(name, ddp, optimizer)
        self.slices = batches
        self.sizes = batches.sizes
        self.batches = iter(DataLoader(data, batch_sampler=batches))

    def force(self, sizes: tuple[int, ...]) -> None:
        """Use these sizes from the next iteration on."""
        self.sizes = self.slices.sizes = sizes

    def loss(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """DDP's plain mean over ranks of loss * W n / X is the mean over the global batch."""
        loss, _ = super().loss(batch)
        return loss, loss * (len(self.slices.sizes) * len(batch[0]) / sum(self.slices.sizes))


class Slices(Sampler[list[int]]):
    """This rank's slice of each global batch, epoch after epoch without end, under sizes that may be set anew."""

    def __init__(self, samples: int, seed: int, rank: int, sizes: tuple[int, ...]) -> None:
        self.samples, self.seed, self.rank, self.sizes = samples, seed, rank, sizes

    def __iter__(self) -> Iterator[list[int]]:
        """Lists of indices; whole global batches only."""
        epoch = 0
        while True:
            generator = torch.Generator().manual_seed(self.seed + epoch)
            order = torch.randperm(self.samples, generator=generator).tolist()
            total = sum(self.sizes)
            for start in range(0, self.samples - total + 1, total):
                first = start + sum(self.sizes[: self.rank])
                yield order[first : first + self.sizes[self.rank]]
            epoch += 1


class BalancedLane(Lane):
    """The two lines of the README, and nothing else."""

    def __init__(
        self, ddp: DistributedDataParallel, optimizer: Optimizer, data: Dataset[Any], batch_samples: int, seed: int
    ) -> None:
        super().__init__(LBBSP, ddp, optimizer)
        self._sampler: DistributedSampler[Any] = DistributedSampler(data, seed=seed, drop_last=True)
        loader = DataLoader(data, batch_size=batch_samples, sampler=self._sampler, drop_last=True)
        self.ddp, self.loader = balance(self.ddp, loader)
        self.batches = self._epochs()

    def _epochs(self) -> Iterator[Batch]:
        epoch = 0
        while True:
            self._sampler.set_epoch(epoch)
            yield from self.loader
            epoch += 1

    @property
    def lag(self) -> int:
        """How old the news behind the newest sizes was, in iterations; 0 before the first plan."""
        lags = self.loader.balancer.follower.totals.lags
        return lags[-1] if lags else 0
