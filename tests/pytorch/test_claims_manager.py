"""With the job's own manager: ranks whose speed changes within iterations claim, and steady ones do not."""

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


def train(rank: int, claims: bool | str, unsteady: bool) -> tuple[int, int, list[int]]:
    """A rank at a time works at a third of its speed, another one in each iteration; own time is slept."""
    data = Numbers(32 * ITERATIONS)
    loader: Any = DataLoader(data, 16, sampler=DistributedSampler(data, 2, rank, shuffle=False))
    model, batches = balance(DistributedDataParallel(nn.Linear(1, 1)), loader, claims=claims)
    sizes, seen = [], 0
    for iteration, chunks in enumerate(batches):
        slow = unsteady and (iteration // 2 + rank) % 2
        sizes.append(0)
        for batch in chunks:
            time.sleep(len(batch) * SAMPLE_S * (3 if slow else 1))
            model(batch.float().reshape(-1, 1)).mean().backward()
            sizes[-1] += len(batch)
            seen += 1
    batches.balancer.close()
    return seen, sum(sizes), sizes


def test_unsteady_ranks_claim() -> None:
    for claims in (True, "auto"):
        ranks = run(2, train, claims, True)
        assert sum(seen for seen, _, _ in ranks) > 2 * ITERATIONS + 20, "nothing was claimed"
        assert sum(samples for _, samples, _ in ranks) == 32 * ITERATIONS
        late = [max(pair) / min(pair) for pair in zip(ranks[0][2][40:], ranks[1][2][40:], strict=True)]
        assert sum(ratio > 1.5 for ratio in late) > len(late) / 2, "claims did not follow the speed of the moment"
