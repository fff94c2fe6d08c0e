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
from lbbsp.adapters.pytorch.parameter_hooks import THIN_AFTER, THIN_FOR, ParameterHooks
from lbbsp.protocol import Report
from lbbsp.worker.owntime import HostMarks
from lbbsp.worker.phases import Phases

THINNED_SOON = 2
ALWAYS_HOOKED = {"summed", "valid_items", "valid_accumulated", "alternating", "gan", "gan_frozen", "chained"}
ALWAYS_HOOKED |= {"parameters_only"}
"""Weighed other than 1 by the loop itself, with parameters left out, of several models, or past every output."""


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


def nothing(*_: object) -> None:
    pass


def thinned_model(
    model: torch.nn.Module | None = None, ready: Callable[..., None] = nothing
) -> tuple[DistributedDataParallel, Gradients]:
    torch.manual_seed(0)
    ddp = DistributedDataParallel(model or Net())
    marks = HostMarks(time.perf_counter)
    return ddp, Gradients([ddp], marks.stamp, ready, nothing, nothing, nothing, nothing, Phases(marks))


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


class Gives(torch.autograd.Function):
    """Uses a parameter that it has no gradient for."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, unmoved: torch.Tensor) -> torch.Tensor:
        return x + unmoved

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class Unmoved(Net):
    def __init__(self) -> None:
        super().__init__()
        self.unmoved = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Gives.apply(super().forward(x), self.unmoved)


def no_gradient(rank: int, weight: float) -> list[float | None]:
    ddp, hooks = thinned_model(Unmoved())
    hooks.weight = weight
    ddp(torch.ones(1, WIDTH)).sum().backward()
    return [None if parameter.grad is None else float(parameter.grad.sum()) for parameter in ddp.parameters()]


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_a_gradient_that_is_not_given_is_not_weighed(weight: float) -> None:
    whole, weighed = run(1, no_gradient, 1.0)[0], run(1, no_gradient, weight)[0]
    assert whole[0] is not None
    assert weighed == [None if one is None else pytest.approx(weight * one) for one in whole]


def passes_with_an_ignored_parameter(rank: int) -> tuple[bool, int]:
    """Whether hooks were let go, and the reductions of ten passes that leave out what DDP ignores."""
    model, reduced = Net(), []
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["first.weight", "first.bias"])
    ddp, hooks = thinned_model(model, lambda *_: reduced.append(1))
    for _ in range(2 * THIN_AFTER):
        ddp(torch.ones(1, WIDTH)).sum().backward()
    thin = hooks._hooks.thin
    reduced.clear()
    model.first.requires_grad_(False)
    for _ in range(10):
        ddp(torch.ones(1, WIDTH)).sum().backward()
    return thin, len(reduced)


def test_parameters_that_ddp_ignores_never_hide_a_reduction() -> None:
    assert run(1, passes_with_an_ignored_parameter)[0] == (False, 10)


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


def test_all_hooks_come_back_now_and_then_to_see_which_parameter_is_the_last() -> None:
    hooks, backward = hooked()
    for _ in range(THIN_AFTER + 1):
        hooks.passed(1, weighed=False)
    for _ in range(THIN_FOR):
        assert backward() == [1]
        hooks.passed(1, weighed=False)
    assert backward() == [0, 1, 2]
    for _ in range(THIN_AFTER + 1):
        hooks.passed(2, weighed=False)
    assert backward() == [2]


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
