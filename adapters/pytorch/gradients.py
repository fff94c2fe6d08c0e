"""Weights gradients and watches reductions of DistributedDataParallel models, without a communication hook.

A hook before each parameter's gradient is accumulated multiplies it with the weight W n / X' of the rank's
samples (n of X' in this iteration, W ranks), so that DDP's plain mean is the mean over the global batch in every
pattern of accumulation; weight 0 writes exact zeros. Callbacks of the autograd engine tell when the last gradient
is ready (the buckets are launched, nobody has waited) and when the reduction has ended.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from lbbsp.adapters.pytorch.parameter_hooks import ParameterHooks
from lbbsp.errors import UnsupportedError
from lbbsp.worker.phases import Phases

Tensors = tuple[torch.Tensor | None, ...]
"""None for a gradient that a function of the user's does not give."""
queue_callback: Callable[[Callable[[], None]], None] = Variable._execution_engine.queue_callback


class Model:
    """One DDP model. Armed as DDP is: by a forward with gradients that synchronises, until its reduction is done."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self.ddp = ddp
        self.armed = False
        self.seen = False
        """A gradient of its own was accumulated in this backward pass."""


class Gradients:
    """Hooks on the models of one job.

    Args:
        ddps: the models; all use the same ranks.
        stamp: the time of a gradient, cheap enough to be taken at each; None where it is not (CUDA).
        ready: called once a backward pass that reduces, with the stamp of its last gradient.
        reduced: called when that reduction has ended.
        waiting: called with True before and with False after a collective inside forward.
        forward: called as a forward pass with gradients begins, with its input's first dimension, None without one.
        done: called when any backward pass has ended.
        phases: hears when forward and backward passes begin and end.
    """

    def __init__(
        self,
        ddps: list[DistributedDataParallel],
        stamp: Callable[[], Any] | None,
        ready: Callable[[Any], None],
        reduced: Callable[[], None],
        waiting: Callable[[bool], None],
        forward: Callable[[int | None], None],
        done: Callable[[], None],
        phases: Phases,
    ) -> None:
        self._weight = 1.0
        self._fixed: float | None = None
        self._used = 1.0
        self.fault: Exception | None = None
        """What went wrong in a callback: raised inside, it would cancel DDP's own; the next draw raises it."""
        self._stamp, self._ready, self._reduced, self._waiting = stamp, ready, reduced, waiting
        self._forward, self._done, self._phases = forward, done, phases
        self._last: Any = None
        self._pending = False
        self._handles: list[Any] = []
        self._hooks = ParameterHooks(may_thin=len(ddps) == 1 and _needs_all(ddps[0]))
        self._by_output = False
        self._newest: int | None = None
        self._models = [Model(ddp) for ddp in ddps]
        for model in self._models:
            self._hook_forward(model)
            for parameter in model.ddp.module.parameters():
                if parameter.requires_grad:
                    self._hook_parameter(model, parameter)

    @property
    def weight(self) -> float:
        """W n / X' of the batch that a forward pass would belong to now; outputs carry it to their backward pass."""
        return self._weight

    @weight.setter
    def weight(self, weight: float) -> None:
        self._weight = weight
        if weight != 1.0:
            self._hooks.all()

    @property
    def fixed(self) -> float | None:
        """Said by the loop itself: holds for backward passes from now on, whatever their outputs carry."""
        return self._fixed

    @fixed.setter
    def fixed(self, weight: float | None) -> None:
        self._fixed = weight
        if weight is not None:
            self._hooks.all()

    def remove(self) -> None:
        """Take all hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._hooks.remove()

    def _hook_forward(self, model: Model) -> None:
        ddp = model.ddp
        self._handles.append(
            ddp.register_forward_pre_hook(
                lambda module, args, named: self._before_forward(model, args, named), with_kwargs=True
            )
        )
        self._handles.append(ddp.register_forward_hook(lambda module, args, output: self._after_forward(output)))
        if ddp.broadcast_buffers and any(True for _ in ddp.module.buffers()):
            before, after = (lambda *_: self._waiting(True)), (lambda *_: self._waiting(False))
            self._handles.append(ddp.register_forward_pre_hook(before))
            self._handles.append(ddp.module.register_forward_pre_hook(after))

    def _before_forward(self, model: Model, args: Any, named: Any) -> None:
        if model.ddp._join_config.enable:
            raise UnsupportedError(
                "the loop runs under Join, which is for uneven numbers of iterations: with balance() all ranks "
                "have the same number; take Join away"
            )
        self._pending = False
        if torch.is_grad_enabled():
            self._forward(_first_dimension(args, named))
            model.armed |= bool(model.ddp.require_backward_grad_sync)
            self._phases.forward()

    def _after_forward(self, output: Any) -> None:
        """The gradient of an output is the first event of a backward pass, in its outermost graph task."""
        weight = self.weight
        self._phases.forwarded()
        for tensor in (output,) if isinstance(output, torch.Tensor) else _tensors(output):
            if tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(lambda _: self._begin(weight))
            elif tensor.requires_grad:
                tensor.register_hook(lambda _: self._begin(weight))  # type: ignore[no-untyped-call]

    def _hook_parameter(self, model: Model, parameter: torch.nn.Parameter) -> None:
        stamp, place = self._stamp, len(self._hooks)

        def before(gradients: Tensors) -> Tensors | None:
            model.seen = True
            if not self._pending or self._fixed is not None:
                self._begin(None)
            self._newest = place
            if stamp is not None:
                self._last = stamp()
            weight = self._used
            if weight == 1.0:
                return None
            if weight == 0.0:
                return tuple(None if gradient is None else torch.zeros_like(gradient) for gradient in gradients)
            return tuple(None if gradient is None else gradient * weight for gradient in gradients)

        self._hooks.add(parameter, before)

    def _begin(self, weight: float | None) -> None:
        """The first event of a backward pass queues the callback of its end; later outputs must weigh the same."""
        by_output = weight is not None
        if self._fixed is not None:
            weight = self._fixed
        if not self._pending:
            self._pending, self._by_output = True, by_output
            self._last = self._newest = None
            self._phases.backward()
            self._used = self._weight if weight is None else weight
            if self._used != 1.0:
                self._hooks.all()
            queue_callback(self._end)
        elif weight is not None and weight != self._used and self.fault is None:
            self.fault = UnsupportedError(
                "one backward pass went through batches of two draws with different sizes, whose gradients can't be "
                "weighed apart: call backward once for each batch"
            )

    def _end(self) -> None:
        """The gradients of this backward pass are done; DDP has not waited for its reduction yet."""
        self._pending = False
        self._hooks.passed(self._newest, self._used != 1.0 or not self._by_output)
        self._phases.backwarded(self._last)
        reducing = [model for model in self._models if model.armed and model.seen]
        for model in self._models:
            model.seen = False
        if reducing:
            for model in reducing:
                model.armed = False
            self._call(self._ready, self._last)
            queue_callback(self._reduction_over)
        self._done()

    def _reduction_over(self) -> None:
        self._call(self._reduced)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            function(*arguments)
        except Exception as fault:  # kept, and raised at the next draw
            self.fault = self.fault or fault


def _needs_all(ddp: DistributedDataParallel) -> bool:
    """Whether each reduction goes through every parameter that takes gradients."""
    left_out = ddp.parameters_to_ignore or getattr(ddp, "_delay_all_reduce_params", None)
    return not (ddp.find_unused_parameters or left_out)


def _first_dimension(args: Any, named: Any) -> int | None:
    """Of the first tensor of a model's input that has one."""
    if args and isinstance(args[0], torch.Tensor) and args[0].dim():
        return args[0].shape[0]
    return next((len(tensor) for tensor in _tensors((args, named)) if tensor.dim()), None)


def _tensors(output: Any) -> list[torch.Tensor]:
    """The tensors in a model's output."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, dict):
        return [tensor for value in output.values() for tensor in _tensors(value)]
    if isinstance(output, list | tuple):
        return [tensor for value in output for tensor in _tensors(value)]
    if hasattr(output, "__dataclass_fields__"):
        return [tensor for name in output.__dataclass_fields__ for tensor in _tensors(getattr(output, name))]
    return []
