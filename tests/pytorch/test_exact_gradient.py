"""Rule 4: what the optimizer sees is what one process sees that is fed whole global batches, to floating point."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from loops import Side, Whole
from nets import WIDTH
from patterns import PATTERNS
from random_manager import ScriptedManager
from ranks import run
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from lbbsp.adapters.pytorch import balance

SAMPLES, LOCAL_BATCH, EPOCHS, SEED = 206, 8, 2, 3
CHANGES, MOST_EPOCHS = 4, 100
"""Epochs go on until the plan has changed so often: a busy machine's plans come late, for several iterations."""
RELATIVE = {torch.float64: 1e-12, torch.float32: 1e-6}


def data(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    return (
        torch.randn(SAMPLES, WIDTH, generator=generator, dtype=torch.float64).to(dtype),
        torch.randn(SAMPLES, 1, generator=generator, dtype=torch.float64).to(dtype),
    )


def models(name: str, dtype: torch.dtype) -> list[torch.nn.Module]:
    torch.manual_seed(SEED)
    return [model.to(dtype) for model in PATTERNS[name].build()]


def optimizers(raw: list[torch.nn.Module]) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5) for model in raw]


def balanced(rank: int, name: str, world_size: int, dtype: torch.dtype) -> dict[str, Any]:
    """The loop on one of the ranks."""
    pattern = PATTERNS[name]
    raw = models(name, dtype)
    ddps = [pattern.wrap(DistributedDataParallel(model, **pattern.ddp)) for model in raw]
    sampler = DistributedSampler(range(SAMPLES), num_replicas=world_size, rank=rank, seed=SEED)
    loader = DataLoader(TensorDataset(*data(dtype)), batch_size=LOCAL_BATCH, sampler=sampler, **pattern.loader)
    ddps, batches = balance(ddps, loader, **({"min_samples": 0} | pattern.balance))
    side = Side(ddps, raw, optimizers(raw), batches, batches.weight, batches.mean, True)
    sizes: list[int] = []
    use = batches.balancer.use
    batches.balancer.use = lambda part: (sizes.append(part.samples), use(part))
    epochs = 0
    while epochs < EPOCHS or (changes_of_any(sizes) < CHANGES and epochs < MOST_EPOCHS):
        sampler.set_epoch(epochs)
        pattern.loop(side)
        epochs += 1
    stats = batches.balancer.stats()
    batches.balancer.close()
    return {"epochs": epochs, "sizes": sizes, "gradients": numpy(side), "losses": side.losses, "stats": stats}


def changes_of_any(sizes: list[int]) -> int:
    """How often the rank's sizes changed on which they changed most; alike on all ranks."""
    most = torch.tensor(int(np.count_nonzero(np.diff(sizes))))
    torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
    return int(most)


def numpy(side: Side) -> list[list[Any]]:
    return [[None if one is None else one.numpy() for one in step] for step in side.gradients]


def alone(name: str, world_size: int, dtype: torch.dtype, epochs: int) -> dict[str, Any]:
    """The same loop in one process."""
    raw = models(name, dtype)
    orders = [
        torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(SEED + epoch)).tolist()
        for epoch in range(epochs)
    ]
    batches = Whole(data(dtype), orders, LOCAL_BATCH * world_size)
    side = Side(list(raw), raw, optimizers(raw), batches, lambda **_: None, lambda loss: loss, False)
    for _ in range(epochs):
        PATTERNS[name].loop(side)
    return {"gradients": numpy(side), "losses": side.losses}


def worst(ours: list[list[Any]], theirs: list[list[Any]]) -> float:
    """The largest deviation of any step's gradient, relative to that gradient's largest entry."""
    assert len(ours) == len(theirs) > 5
    errors = []
    for step, (mine, whole) in enumerate(zip(ours, theirs, strict=True)):
        assert [one is None for one in mine] == [one is None for one in whole], f"step {step}: other parameters"
        mine, whole = ([one.ravel() for one in side if one is not None] for side in (mine, whole))
        a, b = np.concatenate(mine), np.concatenate(whole)
        assert np.isfinite(a).all(), f"step {step}"
        errors.append(float(np.abs(a - b).max() / np.abs(b).max()))
    return max(errors)


def check(
    name: str,
    world_size: int,
    dtype: torch.dtype,
    make: type[ScriptedManager] = ScriptedManager,
    case: Callable[..., dict[str, Any]] = balanced,
) -> list[dict[str, Any]]:
    """What the case returned on each rank, once its gradients were found to be those of one process."""
    with make(seed=len(name) + world_size) as manager:
        ranks = run(world_size, case, name, world_size, dtype, env=manager.env, timeout_s=60)
    (epochs,) = {rank["epochs"] for rank in ranks}
    reference = alone(name, world_size, dtype, epochs)
    for rank in ranks:
        assert worst(rank["gradients"], reference["gradients"]) <= RELATIVE[dtype]
        np.testing.assert_allclose(rank["losses"], reference["losses"], rtol=RELATIVE[dtype])
    sizes = np.array([rank["sizes"] for rank in ranks])
    totals = sizes.sum(0)
    per_epoch = np.minimum(LOCAL_BATCH * world_size, SAMPLES - LOCAL_BATCH * world_size * np.arange(64))
    assert totals.tolist() == epochs * per_epoch[per_epoch > 0].tolist()
    changes = int((np.diff(sizes, axis=1) != 0).any(0).sum())
    assert changes >= CHANGES, f"the plan hardly changed: {sizes.tolist()}"
    assert manager.unsound == 0
    return ranks


@pytest.mark.parametrize("name", PATTERNS)
def test_two_ranks_see_the_gradient_of_one_process(name: str) -> None:
    check(name, 2, torch.float64)


@pytest.mark.parametrize("name", ["plain", "accumulated_plan_changes_within", "gan", "valid_items"])
def test_four_ranks_see_the_gradient_of_one_process(name: str) -> None:
    check(name, 4, torch.float64)


@pytest.mark.parametrize("name", ["plain", "accumulated_plan_changes_within", "clipped"])
def test_in_single_precision(name: str) -> None:
    check(name, 2, torch.float32)
