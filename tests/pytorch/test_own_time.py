"""Rule 7 with real ranks: a worker reports its own work and never a wait. Bounds are far from what is measured."""

import time
from statistics import median
from typing import Any

import pytest
import torch
from random_manager import ScriptedManager
from ranks import run
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from lbbsp.adapters.pytorch import balance
from lbbsp.errors import ConfigError
from lbbsp.protocol import Report

WORK_S, LESS_S = 0.08, 0.04
SAMPLE_S = 0.002
SETTLING = 6


class Slow(Dataset[Tensor]):
    """Samples that take their time."""

    def __init__(self, samples: int, sample_s: float) -> None:
        self.samples, self.sample_s = samples, sample_s

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self.sample_s)
        return torch.full((3,), float(index))


def setup(rank: int, batch_norm: bool = False, draws: int = 18, sample_s: float = 0.0) -> tuple[Any, Any]:
    layers: list[torch.nn.Module] = [torch.nn.Linear(3, 4)]
    if batch_norm:
        layers.append(torch.nn.BatchNorm1d(4))
    data = Slow(16 * draws, sample_s)
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, 2, rank, shuffle=False))
    return balance(DistributedDataParallel(torch.nn.Sequential(*layers)), loader)


def train(rank: int, batch_norm: bool, slow_rank: int) -> None:
    """One rank is slow between draw and forward pass."""
    model, loader = setup(rank, batch_norm)
    for batch in loader:
        if rank == slow_rank:
            time.sleep(WORK_S)
        model(batch).mean().backward()
    loader.balancer.close()


def interrupted(rank: int, batch_norm: bool) -> None:
    """Validation through the model on all ranks, and a checkpoint on rank 0 alone."""
    model, loader = setup(rank, batch_norm)
    for i, batch in enumerate(loader):
        model(batch).mean().backward()
        if i % 7 == 6:
            with torch.no_grad():
                for _ in range(4):
                    time.sleep(0.5 * WORK_S)
                    model(batch)
        if i % 7 == 3 and rank == 0:
            time.sleep(2 * WORK_S)
    loader.balancer.close()


def reads(rank: int) -> None:
    model, loader = setup(rank, draws=12, sample_s=SAMPLE_S)
    for batch in loader:
        model(batch).mean().backward()
    loader.balancer.close()


def counts(rank: int) -> None:
    """Costs of the samples are their indices."""
    data = Slow(16 * 12, 0.0)
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, 2, rank, shuffle=False))
    ddp = DistributedDataParallel(torch.nn.Linear(3, 4))
    model, loader = balance(ddp, loader, cost=lambda batch: float(batch[:, 0].sum()))
    for batch in loader:
        model(batch).mean().backward()
    loader.balancer.close()


def miscounts(rank: int, value: float) -> None:
    data = Slow(16, 0.0)
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, 2, rank))
    _, loader = balance(DistributedDataParallel(torch.nn.Linear(3, 4)), loader, cost=lambda _: value)
    with pytest.raises(ConfigError, match="must count something"):
        next(iter(loader))
    loader.balancer.close()


def reported(case: Any, *args: Any) -> list[list[Report]]:
    """Each rank's reports, those of the first iterations left out."""
    with ScriptedManager() as manager:
        run(2, case, *args, env=manager.env)
    return [
        [report for report in manager.reports if report.rank == rank and report.iteration > SETTLING]
        for rank in range(2)
    ]


def test_a_slow_peer_does_not_inflate_my_own_time() -> None:
    for slow_rank in (0, 1):
        ranks = reported(train, False, slow_rank)
        slow, fast = ranks[slow_rank], ranks[1 - slow_rank]
        assert median(report.own_time_s for report in fast) < LESS_S
        assert min(report.own_time_s for report in slow) >= WORK_S
        assert median(report.wait_s for report in fast) > WORK_S - LESS_S
        told = [report for report in slow if report.phases_s]
        assert told, "one iteration in ten tells where its time went"
        for report in told:
            before_s, forward_s, backward_s = report.phases_s
            assert before_s >= WORK_S
            assert forward_s > 0.0
            assert backward_s > 0.0
            assert sum(report.phases_s) <= report.own_time_s


def test_waiting_for_batch_norms_buffers_is_no_own_time() -> None:
    """Rank 0 is where the buffers come from: rank 1 waits for them in its forward pass."""
    slow, fast = reported(train, True, 0)
    assert median(report.own_time_s for report in fast) < LESS_S
    assert min(report.own_time_s for report in slow) >= WORK_S
    for report in (report for report in fast if report.phases_s):
        assert sum(report.phases_s) <= report.own_time_s, "the wait in its forward pass is in no phase"


def test_validation_and_checkpoint_between_iterations_are_no_own_time() -> None:
    for batch_norm in (False, True):
        for reports in reported(interrupted, batch_norm):
            long = [report.iteration for report in reports if report.own_time_s > 1.9 * WORK_S]
            assert len(long) <= 1, f"{long}: {[round(report.own_time_s, 4) for report in reports]}"


def test_time_in_the_loader_is_own_time_and_is_told() -> None:
    for reports in reported(reads):
        assert len(reports) > 3
        for report in reports:
            assert report.own_time_s >= report.input_s >= report.samples * SAMPLE_S


def test_what_the_user_counts_is_reported_for_each_iteration_and_adds_up() -> None:
    with ScriptedManager() as manager:
        run(2, counts, env=manager.env)
    told: dict[int, list[float]] = {}
    for report in manager.reports:
        told.setdefault(report.iteration, []).append(report.cost)
    whole = {iteration: sum(costs) for iteration, costs in told.items() if len(costs) == 2}
    assert len(whole) > 6
    for iteration, cost in whole.items():
        assert cost == sum(range(16 * (iteration - 1), 16 * iteration))


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_count_that_is_none_is_refused_by_name(value: float) -> None:
    run(2, miscounts, value)
