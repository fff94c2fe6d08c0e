"""Loops that claim: the gradient of one process fed whole batches, and each sample once an epoch, under any plans."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from epochs import Numbers
from nets import WIDTH, Heads, Net, Tied, mse
from random_manager import ScriptedManager
from ranks import run
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from lbbsp.adapters.pytorch import balance

SAMPLES, LOCAL_BATCH, EPOCHS, SEED = 206, 16, 4, 3
RELATIVE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 0.1}

Gradients = list[list[Any]]


def data(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(SAMPLES, WIDTH, generator=generator, dtype=torch.float64)
    return x.to(dtype), torch.randn(SAMPLES, 1, generator=generator, dtype=torch.float64).to(dtype)


def model(kind: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(SEED)
    return {"tied": Tied, "heads": Heads}.get(kind, Net)().to(dtype)


def work(kind: str, net: Any, batch: list[Tensor], iteration: int, weight: Any = None) -> Tensor:
    """One micro-batch's backward pass; the whole global batch's for the process that stands alone."""
    x, y = batch
    if kind == "heads":  # one head goes without gradient in most iterations
        loss = mse(net(x, int(iteration % 3 == 0)), y)
    elif kind == "tied":
        loss = mse(net(x)["y"], y)
    elif kind == "valid":
        valid = x[:, 0] > 0
        if weight is not None:
            weight(valid_items=int(valid.sum()))
        loss = mse(net(x)[valid], y[valid])
    elif kind == "two_losses":
        mse(net(x), y).backward()
        loss = net(2 * x).abs().mean()
    elif kind == "sum":
        loss = ((net(x) - y) ** 2).sum()
    else:
        loss = mse(net(x), y)
    loss.backward()
    return loss.detach()


def survived(batches: Any, kind: str, net: Any, batch: list[Tensor], iteration: int) -> Tensor:
    """The same through balancer.run, in pieces."""
    return batches.balancer.run(lambda piece: work(kind, net, piece, iteration), batch, micro_batch=3)


def step(raw: nn.Module, optimizer: torch.optim.Optimizer, seen: Gradients) -> None:
    seen.append([None if p.grad is None else p.grad.double().numpy().copy() for p in raw.parameters()])
    torch.nn.utils.clip_grad_norm_(raw.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()


def claiming(rank: int, kind: str, world_size: int, dtype: torch.dtype, workers: int) -> dict[str, Any]:
    raw = model(kind, dtype)
    ddp = DistributedDataParallel(raw, find_unused_parameters=kind == "heads")
    if kind == "compiled":
        ddp = torch.compile(ddp, backend="eager", dynamic=True)
    optimizer = torch.optim.AdamW(raw.parameters(), lr=0.02)
    sampler = DistributedSampler(range(SAMPLES), num_replicas=world_size, rank=rank, seed=SEED)
    loader = DataLoader(TensorDataset(*data(dtype)), LOCAL_BATCH, sampler=sampler, num_workers=workers)
    net, batches = balance(ddp, loader, claims=True, min_samples=0, reduction="sum" if kind == "sum" else "mean")
    seen: Gradients = []
    losses, micro_batches = [], []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for iteration, chunks in enumerate(batches):
            total = samples = count = 0
            unsynced = kind == "accumulated" and iteration % 2 == 0 and iteration + 1 < len(batches)
            with net.no_sync() if unsynced else torch.enable_grad():
                for batch in chunks:
                    if kind == "run":
                        loss = survived(batches, kind, net, batch, iteration)
                    else:
                        loss = work(kind, net, batch, iteration, batches.weight)
                    total, samples, count = total + float(loss) * len(batch[0]), samples + len(batch[0]), count + 1
            micro_batches.append(count)
            if kind == "plain":
                losses.append(batches.mean(total / max(1, samples)))
            if not unsynced:
                step(raw, optimizer, seen)
    batches.balancer.close()
    return {"gradients": seen, "losses": losses, "micro_batches": micro_batches}


def alone(kind: str, world_size: int, dtype: torch.dtype) -> dict[str, Any]:
    raw = model(kind, dtype)
    optimizer = torch.optim.AdamW(raw.parameters(), lr=0.02)
    x, y = data(dtype)
    seen: Gradients = []
    losses = []
    batch = LOCAL_BATCH * world_size
    for epoch in range(EPOCHS):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(SEED + epoch))
        starts = range(0, SAMPLES, batch)
        for iteration, start in enumerate(starts):
            taken = order[start : start + batch]
            losses.append(float(work(kind, raw, [x[taken], y[taken]], iteration)))
            if not (kind == "accumulated" and iteration % 2 == 0 and iteration + 1 < len(starts)):
                step(raw, optimizer, seen)
    return {"gradients": seen, "losses": losses}


def worst(ours: Gradients, theirs: Gradients, least: int = 6) -> float:
    assert len(ours) == len(theirs) >= least
    errors = []
    for number, (mine, whole) in enumerate(zip(ours, theirs, strict=True)):
        assert [one is None for one in mine] == [one is None for one in whole], f"step {number}: other parameters"
        a, b = (np.concatenate([one.ravel() for one in side if one is not None]) for side in (mine, whole))
        errors.append(float(np.abs(a - b).max() / np.abs(b).max()))
    return max(errors)


def check(kind: str, world_size: int, dtype: torch.dtype, workers: int) -> None:
    with ScriptedManager(seed=len(kind) + world_size + workers) as manager:
        ranks = run(world_size, claiming, kind, world_size, dtype, workers, env=manager.env)
    reference = alone(kind, world_size, dtype)
    compared = len(reference["gradients"]) if dtype is torch.float64 else 8  # later, rounding has moved the weights
    for rank in ranks:
        assert worst(rank["gradients"][:compared], reference["gradients"][:compared]) <= RELATIVE[dtype]
        np.testing.assert_allclose(rank["losses"], reference["losses"][: len(rank["losses"])], rtol=1e-5)
    counts = np.array([rank["micro_batches"] for rank in ranks])
    assert (counts.max(0) > 2).sum() > 3, f"hardly anything was claimed: {counts.tolist()}"
    assert (counts[0] != counts[1]).any(), "ranks claimed alike: nothing is shown"
    claimed = sum(report.claimed for report in manager.reports)
    assert claimed > 0
    assert all(report.planned + report.claimed in (0, report.samples) for report in manager.reports)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_that_claim_see_the_gradient_of_one_process(world_size: int, workers: int) -> None:
    check("plain", world_size, torch.float64, workers)


@pytest.mark.parametrize("kind", ["heads", "tied", "valid", "two_losses", "sum", "accumulated", "run"])
def test_in_loops_of_all_kinds(kind: str) -> None:
    check(kind, 2, torch.float64, 0)


def test_in_single_precision() -> None:
    check("plain", 2, torch.float32, 0)


def test_in_half_precision_counts_travel_apart() -> None:
    """Followed by the same weights on all ranks, near those of one process."""
    with ScriptedManager(seed=6) as manager:
        ranks = run(2, claiming, "heads", 2, torch.bfloat16, 0, env=manager.env)
    reference = alone("heads", 2, torch.bfloat16)
    assert worst(ranks[0]["gradients"], ranks[1]["gradients"]) == 0
    assert worst(ranks[0]["gradients"][:3], reference["gradients"][:3], 3) <= RELATIVE[torch.bfloat16]


def test_with_compiled_models() -> None:
    with ScriptedManager(seed=7) as manager:
        ranks = run(2, claiming, "compiled", 2, torch.float64, 0, env=manager.env)
    assert worst(ranks[0]["gradients"], alone("plain", 2, torch.float64)["gradients"]) <= RELATIVE[torch.float64]


class Walk:
    """Walks over numbers; keeps what each iteration worked."""

    def __init__(self, rank: int, world_size: int, workers: int, samples: int, **options: Any) -> None:
        torch.manual_seed(1)
        numbers = Numbers(samples)
        self.sampler = DistributedSampler(numbers, world_size, rank)
        loader = DataLoader(numbers, 8, sampler=self.sampler, num_workers=workers)
        self.model, self.loader = balance(DistributedDataParallel(nn.Linear(1, 1)), loader, claims=True, **options)
        self.seen: dict[tuple[int, int], list[list[int]]] = {}

    def epoch(self, number: int, stop_after: int | None = None, first: int = 0) -> None:
        self.sampler.set_epoch(number)
        for draw, chunks in enumerate(self.loader, first):
            for batch in chunks:
                self.seen.setdefault((number, draw), []).append(batch.tolist())
                self.model(batch.float().reshape(-1, 1)).mean().backward()
            if stop_after is not None and draw - first + 1 == stop_after:
                break


def epochs(rank: int, world_size: int, workers: int, samples: int, options: dict[str, Any]) -> Any:
    walk = Walk(rank, world_size, workers, samples, **options)
    for number in range(2):
        walk.epoch(number)
    walk.loader.balancer.close()
    return walk.seen


def merged(ranks: list[dict[tuple[int, int], list[list[int]]]]) -> dict[tuple[int, int], list[int]]:
    found: dict[tuple[int, int], list[int]] = {}
    for seen in ranks:
        for place, batches in seen.items():
            found.setdefault(place, []).extend(index for batch in batches for index in batch)
    return found


def check_epochs(found: dict[tuple[int, int], list[int]], samples: int, batch: int, epochs_run: int) -> None:
    for number in range(epochs_run):
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(number)).tolist()
        for draw, start in enumerate(range(0, samples, batch)):
            assert sorted(found.get((number, draw), [])) == sorted(order[start : start + batch]), (number, draw)


@pytest.mark.parametrize(
    ("world_size", "workers", "samples", "options"),
    [
        (2, 0, 206, {}),
        (2, 2, 206, {}),
        (4, 0, 203, {"min_samples": 0}),
        (4, 2, 200, {}),
        (2, 0, 197, {"min_samples": 3}),
        (2, 0, 208, {"granularity": 4, "min_samples": 0}),
        (2, 0, 206, {"max_samples": 10}),
        (3, 0, 2, {"min_samples": 0}),
        (2, 2, 1, {}),
    ],
)
def test_each_sample_once_an_epoch(world_size: int, workers: int, samples: int, options: dict[str, Any]) -> None:
    with ScriptedManager(seed=samples) as manager:
        ranks = run(world_size, epochs, world_size, workers, samples, options, env=manager.env)
    check_epochs(merged(ranks), samples, 8 * world_size, 2)
    batches = [batch for seen in ranks for (_, draw), all_ in seen.items() for batch in all_ if draw < samples // 32]
    least = max(options.get("min_samples", 1), options.get("granularity", 1))
    assert all(len(batch) >= least for batch in batches if batch)
    assert all(len(batch) <= options.get("max_samples", 10**6) for batch in batches)
    if samples > 100:
        assert Counter(len(all_) for seen in ranks for all_ in seen.values())[1] < sum(map(len, ranks))
