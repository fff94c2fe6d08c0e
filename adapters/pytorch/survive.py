"""balancer.run(step_fn, batch): a step that survives running out of memory, and micro-batches of fixed size.

While any rank's size is unproven all ranks accumulate without reducing; what fails is undone and done again in
halves; then all ranks tell how it went and reduce once, by hand, as DDP would. So collectives match whatever happens
on a rank, and the gradient is exact: a piece of n samples weighs W n / X'. Proven sizes run as DDP has it.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lbbsp.adapters.pytorch.memory import is_out_of_memory
from lbbsp.errors import ConfigError, MemoryLimitError, UnsupportedError

if TYPE_CHECKING:
    from lbbsp.adapters.pytorch.balancer import Balancer

SAFE_SHARE = 0.7
"""Of the smallest batch that has failed on a rank: up to it a size that has worked counts as proven. DDP's own buckets
take memory that a step without reduction does not."""

Step = Callable[[Any], Any]
Split = Callable[[Any, int, int], Any]


def cut(batch: Any, start: int, stop: int) -> Any:
    """Samples start .. stop of tensors and of nested tuples, lists and dicts of tensors."""
    if isinstance(batch, torch.Tensor):
        return batch[start:stop] if batch.dim() else batch
    if isinstance(batch, dict):
        return {key: cut(value, start, stop) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(cut(value, start, stop) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(cut(value, start, stop) for value in batch)
    raise UnsupportedError(
        f"a batch with a {type(batch).__name__} in it can't be cut: pass split=, called as split(batch, start, stop)"
    )


class Survivor:
    """Runs the steps of one rank.

    Args:
        balancer: the rank's part in the job.
        ddps: its models.
    """

    def __init__(self, balancer: "Balancer", ddps: Sequence[DistributedDataParallel]) -> None:
        self._balancer, self._ddps = balancer, ddps
        world_size = balancer.control.world_size
        self._proven = np.zeros(world_size, dtype=np.int64)
        """The largest batch of each rank that has worked at once; the same on all ranks."""
        self._failed = np.full(world_size, np.iinfo(np.int64).max // 2)
        """The smallest that has failed; likewise."""
        self._recent: deque[Any] = deque(maxlen=balancer.terms.lookahead + 1)
        found = {id(p): p for ddp in ddps for p in ddp.module.parameters() if p.requires_grad}
        self._parameters = list(found.values())

    def run(self, step: Step, batch: Any, samples: int, split: Split | None, micro_batch: int | None) -> Any:
        """See Balancer.run; `samples` are this rank's."""
        if micro_batch is not None and micro_batch < 1:
            raise ConfigError(f"micro_batch must be at least 1 sample, got {micro_batch}")
        self._recent.append(self._balancer.follower.in_force.sizes)
        reduces = all(ddp.require_backward_grad_sync for ddp in self._ddps)
        if micro_batch is None and reduces and self._all_proven():
            return self._plainly(step, batch, samples)
        return self._apart(step, batch, samples, split or cut, micro_batch or samples, reduces)

    def _all_proven(self) -> bool:
        proven = np.minimum(self._proven, SAFE_SHARE * self._failed)
        return bool((np.max(self._recent, axis=0) <= proven).all())

    def _plainly(self, step: Step, batch: Any, samples: int) -> Any:
        try:
            return step(batch)
        except Exception as error:
            if is_out_of_memory(error):
                self._balancer.memory.tell(error, samples)
            raise

    def _apart(self, step: Step, batch: Any, samples: int, split: Split, at_once: int, reduces: bool) -> Any:
        """Pieces without reduction, in smaller ones where they don't fit; then one reduction."""
        fixed, before = self._balancer.weighed_by_user, _State(self._ddps, self._parameters)
        fault: Exception | None = None
        result: Any = None
        failed = 0
        with self._unsynced(reduces):
            while True:
                fault, result = self._attempt(step, batch, samples, split, max(1, at_once), fixed)
                if fault is None:
                    break
                before.restore()
                failed = min(max(1, at_once), samples)
                self._balancer.follower.disturbed = True
                if at_once <= 1:
                    break
                self._balancer.memory.failed(min(at_once, samples))
                fault, at_once = None, (min(at_once, samples) + 1) // 2
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
        if reduces:
            self._finish(min(at_once, samples), failed, fault)
        if fault is not None:
            raise self._balancer.memory.tell(fault, 1)
        return result

    def _attempt(
        self, step: Step, batch: Any, samples: int, split: Split, at_once: int, fixed: float | None
    ) -> tuple[Exception | None, Any]:
        """All pieces once: what did not fit, and what the steps returned together."""
        results = []
        if fixed is not None and at_once < samples:
            raise UnsupportedError(
                "a batch that is weighed by valid items can't be cut into pieces: their items are not known; use "
                "smaller sizes (max_samples)"
            )
        try:
            for start in range(0, max(1, samples), at_once):
                stop = min(samples, start + at_once)
                whole = stop - start == samples
                with self._balancer.weighing(stop - start, fixed):
                    results.append((stop - start, step(batch if whole else split(batch, start, stop))))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return error if at_once <= 1 else _without_frames(error), None
        return None, _together(results, self._balancer.sums)

    def _finish(self, worked: int, failed: int, fault: Exception | None) -> None:
        """All ranks: how it went, then the reduction."""
        balancer, control = self._balancer, self._balancer.control
        ranks = torch.zeros(3, control.world_size, dtype=torch.float64)
        ranks[:, control.rank] = torch.tensor([worked, failed, fault is not None], dtype=torch.float64)
        used = torch.tensor([p.grad is not None for p in self._parameters], dtype=torch.float64)
        balancer.memory.at_once = 0 if fault is not None else worked
        balancer.reducing()
        status = control.sum(torch.cat([ranks.flatten(), used])).numpy()
        worked_at, smallest, ended = status[: ranks.numel()].reshape(3, -1).astype(np.int64)
        if ended.any():
            if fault is None:
                raise MemoryLimitError(
                    f"rank {int(np.argmax(ended))} ran out of memory with a single sample: no batch fits there"
                )
            return
        self._proven = np.maximum(self._proven, worked_at)
        self._failed = np.where(smallest > 0, np.minimum(self._failed, smallest), self._failed)
        self._reduce(status[ranks.numel() :].tolist())
        balancer.follower.reduced()

    def _reduce(self, used: list[float]) -> None:
        """The mean over ranks of each gradient that any rank has, in place."""
        group, works = self._ddps[0].process_group, []
        for parameter, ranks in zip(self._parameters, used, strict=True):
            if not ranks:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad.is_sparse:
                raise UnsupportedError("balancer.run does not reduce sparse gradients: use nn.Embedding(sparse=False)")
            works.append(dist.all_reduce(parameter.grad, group=group, async_op=True))
        for work in works:
            if work is not None:
                work.wait()
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.div_(self._balancer.control.world_size)

    @contextlib.contextmanager
    def _unsynced(self, reduces: bool) -> Iterator[None]:
        """No collective inside, buffers included; afterwards DDP goes on as after a reduction."""
        with contextlib.ExitStack() as stack:
            for ddp in self._ddps:
                stack.enter_context(ddp.no_sync())
                if reduces:
                    ddp.require_forward_param_sync = False
            yield
        if reduces:
            for ddp in self._ddps:
                ddp.require_forward_param_sync = True


class _State:
    """Gradients and buffers before a step, so that what failed can be undone."""

    def __init__(self, ddps: Sequence[DistributedDataParallel], parameters: list[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._gradients = [None if p.grad is None else p.grad.clone() for p in parameters]
        self._buffers = [(buffer, buffer.clone()) for ddp in ddps for buffer in ddp.module.buffers()]

    def restore(self) -> None:
        """As it was."""
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            if gradient is None or parameter.grad is None:
                parameter.grad = None if gradient is None else gradient.clone()
            else:
                parameter.grad.copy_(gradient)
        with torch.no_grad():
            for buffer, value in self._buffers:
                buffer.copy_(value)


def _without_frames(error: Exception) -> Exception:
    """The error without its traceback, whose frames hold the activations that did not fit."""
    return error.with_traceback(None)


def _together(results: list[tuple[int, Any]], sums: bool) -> Any:
    """What one step over all pieces would have returned, of numbers and tensors of one element; else the last."""
    if len(results) == 1:
        return results[0][1]
    total = sum(samples for samples, _ in results)
    values = [value for _, value in results]
    if not all(isinstance(value, int | float) or _is_scalar(value) for value in values):
        return values[-1]
    weighted = (value * (1.0 if sums else samples / total) for samples, value in results)
    return sum(value.detach() if isinstance(value, torch.Tensor) else value for value in weighted)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1
