"""Under a real memory limit run() goes on with the exact gradient; two lines end with rank, batch and bound."""

import ctypes
import functools
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nets import WIDTH, Net, mse
from random_manager import ScriptedManager
from ranks import outcomes, run
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lbbsp.adapters.pytorch import Balancer
from lbbsp.adapters.pytorch.survive import cut
from lbbsp.worker import remembered

BATCH, STEPS, HIDDEN, MIB = 48, 6, 400_000, 2**20
M_ARENA_MAX = -8
LIMIT = 400 * MIB
"""A batch of BATCH - 1 needs 430 MiB, half of one 210."""


class Wide(nn.Module):
    """Activations of 3.2 MB a sample each."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, HIDDEN), nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)).mean(1, keepdim=True))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (STEPS, BATCH)
    return torch.randn(*shape, WIDTH, generator=generator).double(), torch.randn(
        *shape, 1, generator=generator
    ).double()


def build(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().double()


def limit_memory(more_bytes: int) -> Callable[[], None]:
    """Allow this process so much more address space; returns what lifts the limit."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more_bytes, hard))
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def train(rank: int, kind: type[nn.Module], limits: list[int], lines: bool = False, **options: Any) -> dict[str, Any]:
    """A loop without a DataLoader on one rank; `lines`: without run()."""
    ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)  # else each new thread reserves 128 MB of address space
    model = build(kind)
    mse(model(torch.zeros(1, WIDTH).double()), torch.zeros(1, 1).double()).backward()
    ddp = DistributedDataParallel(model)
    settings = {"global_batch": BATCH, "min_samples": 0} | options.pop("settings", {})
    balancer = Balancer(ddp, **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    xs, ys = data()

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        seen.append(len(batch[0]))
        loss = mse(ddp(batch[0]), batch[1])
        loss.backward()
        return loss.detach()

    seen: list[int] = []
    losses = []
    lift = limit_memory(limits[rank]) if limits[rank] else lambda: None
    try:
        for k in range(STEPS):
            mine = balancer.slice(BATCH)
            optimizer.zero_grad()
            batch = (xs[k][mine], ys[k][mine])
            loss = step(batch) if lines else balancer.run(step, batch, **options)
            losses.append(float(balancer.mean(loss)))
            optimizer.step()
            balancer.step()
    except (RuntimeError, MemoryError) as error:
        lift()
        sys.excepthook(type(error), error, error.__traceback__)  # as the interpreter does where a program ends by it
        raise
    finally:
        lift()
    parameters = [parameter.detach().numpy() for parameter in model.parameters()]
    failures, bound = balancer.memory.model.failures, balancer.memory.model.bound()
    balancer.close()
    return {"parameters": parameters, "losses": losses, "failures": failures, "bound": bound, "seen": seen}


@functools.cache
def alone(kind: type[nn.Module]) -> tuple[list[np.ndarray], list[float]]:
    """One process, fed whole global batches."""
    model = build(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for x, y in zip(*data(), strict=True):
        optimizer.zero_grad()
        loss = mse(model(x), y)
        loss.backward()
        losses.append(float(loss.detach()))
        optimizer.step()
    return [parameter.detach().numpy() for parameter in model.parameters()], losses


def same(ranks: list[dict[str, Any]], kind: type[nn.Module]) -> None:
    parameters, losses = alone(kind)
    for one in ranks:
        assert np.allclose(one["losses"], losses, rtol=1e-12)
        for mine, theirs in zip(one["parameters"], parameters, strict=True):
            assert np.abs(mine - theirs).max() <= 1e-12 * max(1e-3, np.abs(theirs).max())


def test_run_survives_a_real_memory_limit_with_the_exact_gradient(tmp_path: Path) -> None:
    with ScriptedManager() as manager:
        ended = run(2, train, Wide, [0, 240 * MIB], env=manager.env | {"LBBSP_STATE_DIR": str(tmp_path)})
    assert ended[1]["failures"] >= 1
    assert ended[0]["failures"] == 0
    assert ended[1]["bound"] < BATCH
    same(ended, Wide)


def test_a_single_sample_that_does_not_fit_ends_all_ranks_at_once(tmp_path: Path) -> None:
    with ScriptedManager() as manager:
        env = manager.env | {"LBBSP_STATE_DIR": str(tmp_path)}
        ended = outcomes(2, train, Wide, [0, 8 * MIB], env=env, timeout_s=30)
    assert (ended[0].error or "").startswith("MemoryLimitError: rank 1 ran out of memory with a single sample")
    assert "can't allocate memory" in (ended[1].error or "")


class Steep(ScriptedManager):
    """Gives rank 1 nearly all: far beyond its limit, and half of it is far within, whatever else needs memory."""

    def _offer(self, job: Any, report: Any, sizes: tuple[int, ...]) -> None:
        super()._offer(job, report, (1, BATCH - 1))


def test_two_lines_stop_with_rank_batch_and_bound_and_the_restart_succeeds(tmp_path: Path) -> None:
    with Steep() as manager:
        env = manager.env | {"LBBSP_STATE_DIR": str(tmp_path), "LBBSP_JOB": "limited"}
        ended = outcomes(2, train, Wide, [0, LIMIT], True, env=env, timeout_s=40)
    assert "can't allocate memory" in (ended[1].error or "")
    told = r"rank 1 ran out of memory with a batch of (\d+) samples; lowered bound: (\d+)\. A restart uses it"
    found = re.search(told, ended[1].trace)
    assert found is not None
    batch, bound = (int(number) for number in found.groups())
    assert bound < batch
    with ScriptedManager() as manager:
        env = manager.env | {"LBBSP_STATE_DIR": str(tmp_path), "LBBSP_JOB": "limited"}
        again = run(2, train, Wide, [0, LIMIT], True, env=env)
    assert max(again[1]["seen"]) <= bound
    same(again, Wide)


@pytest.mark.parametrize("world_size", [2, 4])
def test_micro_batches_are_exact_and_of_one_shape(world_size: int, tmp_path: Path) -> None:
    with ScriptedManager() as manager:
        env = manager.env | {"LBBSP_STATE_DIR": str(tmp_path)}
        settings = {"granularity": 4}
        ended = run(world_size, _micro, world_size, settings, env=env)
    assert {samples for one in ended for samples in one["seen"]} <= {0, 4}
    same(ended, Net)


def _micro(rank: int, world_size: int, settings: dict[str, Any]) -> dict[str, Any]:
    return train(rank, Net, [0] * world_size, settings=settings, micro_batch=4)


def test_where_all_sizes_are_proven_ddp_runs_as_ever(tmp_path: Path) -> None:
    with ScriptedManager() as manager:
        env = manager.env | {"LBBSP_STATE_DIR": str(tmp_path)}
        ended = run(2, train, Net, [0, 0], env=env)
    same(ended, Net)


def test_batches_are_cut_through_their_structure() -> None:
    x = torch.arange(6)
    assert cut({"a": [x, (x, x)]}, 2, 4)["a"][1][0].tolist() == [2, 3]
    with pytest.raises(ValueError, match="pass split="):
        cut(["words"], 0, 1)


def test_a_bound_is_kept_for_the_restart_and_forgotten_when_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LBBSP_STATE_DIR", str(tmp_path / "new"))
    assert remembered.recall("model") is None
    assert remembered.remember("model", 12, 24)
    found = remembered.recall("model")
    assert found is not None
    assert found.max_samples == 12
    remembered.path_of("model").write_text("{")
    assert remembered.recall("model") is None
    monkeypatch.setattr(remembered, "KEPT_S", -1.0)
    assert remembered.recall("model") is None
