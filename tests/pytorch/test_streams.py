"""Rules 1, 4 and 5 over IterableDatasets: sizes by the plan, exact weights, the end at once on all ranks."""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from random_manager import ScriptedManager
from ranks import outcomes, run
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from lbbsp.adapters.pytorch import balance

LOCAL_BATCH = 8
APART = 1_000_000


class Stream(IterableDataset[int]):
    """Numbers of this rank's own; loader workers take turns."""

    def __init__(self, rank: int, samples: int) -> None:
        self.rank, self.samples = rank, samples

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        turn, turns = (worker.id, worker.num_workers) if worker else (0, 1)
        return iter(range(self.rank * APART + turn, self.rank * APART + self.samples, turns))


@dataclass(frozen=True)
class Plan:
    """Each rank's samples, and how the loop goes."""

    samples: tuple[int, ...] = (200, 200)
    windows: tuple[int, ...] = (1,)
    """Draws a reduction, in turn."""
    epochs: int = 1
    workers: int = 0
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Seen:
    """What one rank saw."""

    epochs: list[list[list[int]]] = field(default_factory=list)
    windows: list[int] = field(default_factory=list)
    gradients: list[float] = field(default_factory=list)


def stream(rank: int, plan: Plan) -> Seen:
    data = Stream(rank, plan.samples[rank])
    model = DistributedDataParallel(torch.nn.Linear(1, 1, dtype=torch.float64))
    model, loader = balance(model, DataLoader(data, LOCAL_BATCH, num_workers=plan.workers), **plan.options)
    seen, windows = Seen(), itertools.cycle(plan.windows)
    for _ in range(plan.epochs):
        seen.epochs.append([])
        iterator, ended = iter(loader), False
        while not ended:
            window, drawn = next(windows), 0
            for last in range(window - 1, -1, -1):
                batch = next(iterator, None)
                if batch is None:
                    ended = True
                    break
                drawn += 1
                seen.epochs[-1].append(batch.tolist())
                backward(model, batch, synchronised=last == 0)
            if not ended:
                seen.windows.append(drawn)
                seen.gradients.append(float(model.module.weight.grad))
            model.zero_grad()
    loader.balancer.close()
    return seen


def backward(model: Any, batch: torch.Tensor, synchronised: bool) -> None:
    """The gradient of the weight is the mean of the samples' numbers, modulo what tells ranks apart."""
    model.require_backward_grad_sync = synchronised
    model((batch % APART).to(torch.float64).reshape(-1, 1)).mean().backward()
    model.require_backward_grad_sync = True


@functools.cache
def play(name: str) -> list[Seen]:
    plan = CASES[name]
    with ScriptedManager(seed=7) as manager:
        return run(len(plan.samples), stream, plan, env=manager.env)


CASES = {
    "equal": Plan(),
    "unequal": Plan(samples=(300, 90)),
    "unequal_turned": Plan(samples=(90, 300)),
    "three_ranks": Plan(samples=(150, 240, 200)),
    "epochs": Plan(samples=(120, 150), epochs=3),
    "accumulated": Plan(samples=(600, 600), windows=(3,)),
    "accumulated_more_and_more": Plan(samples=(400, 400), windows=(1, 1, 1, 2, 4, 5)),
    "workers": Plan(workers=2, epochs=2),
    "bounded": Plan(options={"min_samples": 4, "max_samples": 12}),
    "granular": Plan(options={"min_samples": 0, "granularity": 4}),
}


@pytest.mark.parametrize("name", CASES)
def test_streams_end_at_once_and_every_draw_is_a_whole_global_batch(name: str) -> None:
    plan = CASES[name]
    ranks = play(name)
    batch, least = LOCAL_BATCH * len(ranks), plan.options.get("min_samples", 1)
    for epoch in range(plan.epochs):
        draws = [seen.epochs[epoch] for seen in ranks]
        assert len({len(one) for one in draws}) == 1, "the end is not joint"
        assert {sum(map(len, parts)) for parts in zip(*draws, strict=True)} == {batch}
        left = [plan.samples[rank] - sum(map(len, one)) for rank, one in enumerate(draws)]
        assert sum(left) < batch or min(left) < max(1, least), f"it ended early: {left} were left"
        check_order(plan, draws)
    sizes = [tuple(map(len, parts)) for parts in zip(*(seen.epochs[0] for seen in ranks), strict=True)]
    assert len(set(sizes)) > 2, "the plan hardly changed"


def check_order(plan: Plan, draws: list[list[list[int]]]) -> None:
    """Each rank takes its own stream in order, each sample once."""
    for rank, one in enumerate(draws):
        taken = [sample - rank * APART for part in one for sample in part]
        assert len(taken) == len(set(taken))
        if not plan.workers:
            assert taken == list(range(len(taken)))


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_means_over_the_global_batch(name: str) -> None:
    plan = CASES[name]
    ranks = play(name)
    means = iter(global_means(ranks, plan))
    wanted = [sum(itertools.islice(means, window)) for window in ranks[0].windows]
    assert len(wanted) > 3
    for seen in ranks:
        np.testing.assert_allclose(seen.gradients, wanted, rtol=1e-12)


def global_means(ranks: list[Seen], plan: Plan) -> list[float]:
    """The mean of each draw's samples over all ranks."""
    draws = [zip(*(seen.epochs[epoch] for seen in ranks), strict=True) for epoch in range(plan.epochs)]
    flat = ([sample % APART for part in parts for sample in part] for parts in itertools.chain(*draws))
    return [float(np.mean(samples)) for samples in flat]


def test_a_stream_shorter_than_its_first_batch_is_named() -> None:
    with ScriptedManager() as manager:
        ended = outcomes(2, stream, Plan(samples=(100, 3)), env=manager.env)
    assert "rank 1's stream holds 3 samples, its first batch 8" in str(ended[1].error)
