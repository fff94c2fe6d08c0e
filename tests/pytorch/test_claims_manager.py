"""With the job's own manager: ranks whose speeds no plan can follow claim."""

import time
from typing import Any

from epochs import Numbers
from ranks import run
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from lbbsp.adapters.pytorch import balance

SAMPLE_S, ITERATIONS = 0.0006, 60


def train(rank: int, claims: bool | str) -> tuple[int, int]:
    """A rank at a time works at a third of its speed, another one in each iteration; own time is slept."""
    data = Numbers(32 * ITERATIONS)
    loader: Any = DataLoader(data, 16, sampler=DistributedSampler(data, 2, rank, shuffle=False))
    model, batches = balance(DistributedDataParallel(nn.Linear(1, 1)), loader, claims=claims)
    samples = seen = 0
    for iteration, chunks in enumerate(batches):
        slow = (iteration // 2 + rank) % 2
        for batch in chunks:
            time.sleep(len(batch) * SAMPLE_S * (3 if slow else 1))
            model(batch.float().reshape(-1, 1)).mean().backward()
            samples += len(batch)
            seen += 1
    batches.balancer.close()
    return seen, samples


def test_unsteady_ranks_claim() -> None:
    for claims in (True, "auto"):
        ranks = run(2, train, claims)
        assert sum(samples for _, samples in ranks) == 32 * ITERATIONS
        assert sum(seen for seen, _ in ranks) > 2 * ITERATIONS, "nothing was claimed"
