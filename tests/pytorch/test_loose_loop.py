"""Balancer by hand: loops without a DataLoader take slices or counts, and see the gradient of one process."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from random_manager import ScriptedManager
from ranks import outcomes, run
from torch.nn.parallel import DistributedDataParallel

from lbbsp.adapters.pytorch import Balancer
from lbbsp.errors import ConfigError

SAMPLES, GLOBAL_BATCH, EPOCHS = 206, 16, 3
VALUES = torch.randn(SAMPLES, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@dataclass
class Seen:
    """What one rank saw: of each iteration its slice, and the gradient."""

    slices: list[tuple[int, int]] = field(default_factory=list)
    gradients: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


def model() -> Any:
    torch.manual_seed(0)
    return DistributedDataParallel(torch.nn.Linear(1, 1, dtype=torch.float64))


def train(rank: int, options: dict[str, Any], window: int) -> Seen:
    ddp, seen = model(), Seen()
    balancer = Balancer(ddp, global_batch=GLOBAL_BATCH, **options)
    batches = [batch for _ in range(EPOCHS) for batch in VALUES.split(GLOBAL_BATCH)]
    for number, batch in enumerate(batches, 1):
        part = balancer.slice(len(batch))
        assert balancer.slice(len(batch)) == part, "asked again, it answers the same"
        last = number % window == 0
        ddp.require_backward_grad_sync = last
        loss = ddp(batch[part]).mean()
        loss.backward()
        seen.slices.append((part.start, part.stop))
        seen.losses.append(float(balancer.mean(loss.detach())))
        if last:
            seen.gradients.append(float(ddp.module.weight.grad))
            ddp.zero_grad()
        balancer.step()
    balancer.close()
    return seen


def counts(rank: int) -> list[int]:
    """Takes samples of its own, as many as it is told; asks twice, steps once."""
    ddp, sizes = model(), []
    balancer = Balancer(ddp, global_batch=GLOBAL_BATCH, min_samples=0)
    for _ in range(30):
        sizes.append(balancer.batch_samples)
        ddp(torch.ones(balancer.batch_samples, 1, dtype=torch.float64)).mean().backward()
        assert balancer.batch_samples == sizes[-1], "it changes at step() and not before"
        assert abs(float(ddp.module.weight.grad) - 1.0) < 1e-12
        ddp.zero_grad()
        balancer.step()
    balancer.close()
    return sizes


def too_many(rank: int) -> str:
    balancer = Balancer(model(), global_batch=GLOBAL_BATCH)
    with pytest.raises(ConfigError) as caught:
        balancer.slice(GLOBAL_BATCH + 1)
    balancer.close()
    return str(caught.value)


def unnamed(rank: int) -> None:
    Balancer(model())


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize(("ranks", "options"), [(2, {"min_samples": 0}), (3, {"max_samples": 9})])
def test_slices_share_each_batch_out_and_gradients_are_its_mean(
    ranks: int, options: dict[str, Any], window: int
) -> None:
    with ScriptedManager(seed=ranks + window) as manager:
        seen = run(ranks, train, options, window, env=manager.env)
    batches = [batch for _ in range(EPOCHS) for batch in VALUES.split(GLOBAL_BATCH)]
    for batch, *slices in zip(batches, *(one.slices for one in seen), strict=True):
        assert [start for start, _ in slices] == [0, *(stop for _, stop in slices[:-1])]
        assert slices[-1][1] == len(batch)
    means = np.array([float(batch.mean()) for batch in batches])
    whole = means[: len(means) // window * window].reshape(-1, window).sum(1)
    weight, bias = (one.item() for one in model_of_one_process())
    for one in seen:
        np.testing.assert_allclose(one.gradients, whole, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(one.losses, weight * means + bias, rtol=1e-12, atol=1e-15)
    assert len(set(seen[0].slices)) > 5, "the plan hardly changed"


def model_of_one_process() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return list(torch.nn.Linear(1, 1, dtype=torch.float64).parameters())


def test_batch_samples_add_up_to_the_global_batch() -> None:
    with ScriptedManager(seed=2) as manager:
        sizes = run(2, counts, env=manager.env)
    assert {sum(both) for both in zip(*sizes, strict=True)} == {GLOBAL_BATCH}
    assert len(set(sizes[0])) > 3


def test_a_batch_above_the_global_batch_is_refused_by_name() -> None:
    with ScriptedManager() as manager:
        texts = run(2, too_many, env=manager.env)
    assert all("17 samples does not fit the global batch of 16" in text for text in texts)


def test_without_a_global_batch_the_error_says_what_is_wanted() -> None:
    with ScriptedManager() as manager:
        ended = outcomes(2, unnamed, env=manager.env)
    assert all("give global_batch=" in str(one.error) for one in ended)
