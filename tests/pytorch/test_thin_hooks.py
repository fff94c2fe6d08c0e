"""Rule 4 where parameters lose their hooks while gradients weigh 1, and have them back before any weighs otherwise."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nets import WIDTH, Net
from patterns import PATTERNS
from random_manager import Job, ScriptedManager
from ranks import run
from test_exact_gradient import LOCAL_BATCH, balanced, check
from torch.nn.parallel import DistributedDataParallel

from lbbsp.adapters.pytorch import gradients, parameter_hooks
from lbbsp.adapters.pytorch.balancer import Balancer
from lbbsp.adapters.pytorch.gradients import Gradients
from lbbsp.adapters.pytorch.parameter_hooks import THIN_AFTER, ParameterHooks
from lbbsp.protocol import Report
from lbbsp.worker.owntime import HostMarks
from lbbsp.worker.phases import Phases

THINNED_SOON = 2
ALWAYS_HOOKED = {"summed", "valid_items", "valid_accumulated", "alternating", "gan", "gan_frozen", "chained"}
"""Weighed other than 1 by the loop itself, with parameters left out, or of several models."""


class Halting(ScriptedManager):
    """Plans equal sizes for six iterations, then random ones for two."""

    def _offer(self, job: Job, report: Report, sizes: tuple[int, ...]) -> None:
        equal = (LOCAL_BATCH,) * len(sizes)
        super()._offer(job, report, equal if report.iteration % 8 < 6 else sizes)


class Counted(ParameterHooks):
    """Counts how often it has let hooks go and taken them back."""

    thinned = filled = 0

    def passed(self, last: int | None, weighed: bool) -> None:
        before = self.thin
        super().passed(last, weighed)
        Counted.thinned += self.thin and not before

    def all(self) -> None:
        Counted.filled += self.thin
        super().all()


def thinly(rank: int, name: str, world_size: int, dtype: torch.dtype) -> dict[str, Any]:
    parameter_hooks.THIN_AFTER = THINNED_SOON
    gradients.ParameterHooks = Counted
    return balanced(rank, name, world_size, dtype) | {"thinned": Counted.thinned, "filled": Counted.filled}


@pytest.mark.parametrize("name", PATTERNS)
def test_gradients_stay_exact_while_hooks_come_and_go(name: str) -> None:
    for rank in check(name, 2, torch.float64, Halting, thinly):
        assert (rank["thinned"] > 0, rank["filled"] > 0) == (name not in ALWAYS_HOOKED,) * 2


def kept_output(rank: int) -> list[float]:
    """Gradients of an output whose batch weighed a half, asked for when hooks have long been let go."""
    ddp, hooks = thinned_model()
    hooks.weight = 0.5
    kept = ddp(torch.ones(1, WIDTH))
    hooks.weight = 1.0
    train(ddp, hooks)
    kept.sum().backward()
    return gradients_of(ddp)


def without_output(rank: int) -> list[float]:
    """Gradients that come past no output of the model's, of a batch that weighs a half."""
    ddp, hooks = thinned_model()
    train(ddp, hooks)
    hooks.weight = 0.5
    sum(parameter.sum() for parameter in ddp.parameters()).backward()
    return gradients_of(ddp)


def thinned_model() -> tuple[DistributedDataParallel, Gradients]:
    torch.manual_seed(0)
    ddp = DistributedDataParallel(Net())

    def nothing(*_: object) -> None:
        pass

    marks = HostMarks(time.perf_counter)
    return ddp, Gradients([ddp], marks.stamp, nothing, nothing, nothing, nothing, nothing, Phases(marks))


def train(ddp: DistributedDataParallel, hooks: Gradients) -> None:
    """Until hooks are let go."""
    for _ in range(THIN_AFTER + 1):
        assert not hooks._hooks.thin
        ddp(torch.ones(1, WIDTH)).sum().backward()
    assert hooks._hooks.thin
    ddp.zero_grad()


def gradients_of(model: torch.nn.Module) -> list[float]:
    """Flat; plain numbers, since tensors can't outlive the process that made them."""
    return [float(entry) for parameter in model.parameters() for entry in parameter.grad.ravel()]


def test_an_output_of_long_ago_is_weighed_by_its_own_batch() -> None:
    torch.manual_seed(0)
    model = Net()
    (0.5 * model(torch.ones(1, WIDTH)).sum()).backward()
    assert run(1, kept_output)[0] == pytest.approx(gradients_of(model))


def test_gradients_past_every_output_are_weighed_at_once() -> None:
    assert set(run(1, without_output)[0]) == {0.5}


def test_an_equal_part_weighs_1_exactly() -> None:
    for world_size in range(1, 300):
        balancer = SimpleNamespace(control=SimpleNamespace(world_size=world_size), _reduction="mean")
        assert {Balancer._weight(balancer, n, n * world_size) for n in (1, 3, 8, 32, 100, 216)} == {1.0}


def hooked(may_thin: bool = True) -> tuple[ParameterHooks, Callable[[], list[int]]]:
    """Hooks on three parameters, and what a backward pass calls, in order."""
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    called: list[int] = []
    hooks = ParameterHooks(may_thin)
    for place, parameter in enumerate(parameters):
        hooks.add(parameter, lambda gradients, place=place: called.append(place))

    def backward() -> list[int]:
        called.clear()
        sum(parameter.sum() for parameter in parameters).backward()
        return sorted(called)

    return hooks, backward


def test_one_hook_stays_after_enough_passes_alike_and_all_come_back() -> None:
    hooks, backward = hooked()
    for _ in range(THIN_AFTER + 1):
        assert backward() == [0, 1, 2]
        hooks.passed(1, weighed=False)
    assert hooks.thin
    assert backward() == [1]
    hooks.passed(1, weighed=False)
    hooks.all()
    assert not hooks.thin
    assert backward() == [0, 1, 2]
    for _ in range(THIN_AFTER - 1):
        hooks.passed(1, weighed=False)
    assert not hooks.thin, "counted anew"


@pytest.mark.parametrize(
    ("last", "weighed"), [(0, False), (1, True)], ids=["another parameter is the last", "gradients are weighed"]
)
def test_one_pass_that_is_not_alike_is_enough_to_keep_all_hooks(last: int, weighed: bool) -> None:
    hooks, backward = hooked()
    for number in range(3 * THIN_AFTER):
        hooks.passed(*((last, weighed) if number % THIN_AFTER == 0 else (1, False)))
    assert not hooks.thin
    assert backward() == [0, 1, 2]


def test_passes_that_accumulate_nothing_count_for_nothing() -> None:
    hooks, _ = hooked()
    for number in range(2 * THIN_AFTER + 2):
        assert not hooks.thin
        hooks.passed(1 if number % 2 else None, weighed=False)
    assert hooks.thin


def test_models_that_may_leave_parameters_out_keep_all_hooks() -> None:
    hooks, backward = hooked(may_thin=False)
    for _ in range(3 * THIN_AFTER):
        hooks.passed(1, weighed=False)
    assert not hooks.thin
    assert backward() == [0, 1, 2]


def test_after_removal_no_hook_comes_back() -> None:
    hooks, backward = hooked()
    for _ in range(THIN_AFTER + 1):
        hooks.passed(1, weighed=False)
    hooks.remove()
    hooks.all()
    assert backward() == []
