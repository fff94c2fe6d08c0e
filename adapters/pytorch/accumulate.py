"""One iteration's gradients, accumulated over micro-batches without DDP's reducer and averaged once, by hand.

Each micro-batch's gradient is weighed as it accumulates (gradients.py), so the mean over ranks of the sums is the mean
over the global batch. Flat buckets, as few collectives as DDP's; a parameter that no rank used keeps no gradient.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lbbsp.errors import UnsupportedError

BUCKET_BYTES = 25 * 2**20
"""As DDP's: what is copied while the bucket before is on its way."""

Sum = Callable[[torch.Tensor], Callable[[], torch.Tensor]]


class Accumulation:
    """Takes DDP's part in iterations whose micro-batches differ in number from rank to rank.

    Args:
        ddps: the job's models.
        post_sum: begins to add up a CPU tensor over the ranks; what is returned waits for it.
        world_size: ranks.
    """

    def __init__(self, ddps: Sequence[DistributedDataParallel], post_sum: Sum, world_size: int) -> None:
        self._ddps, self._post_sum, self._world_size = ddps, post_sum, world_size
        found = {id(p): p for ddp in ddps for p in ddp.module.parameters() if p.requires_grad}
        self.parameters = list(found.values())
        self._buckets = _buckets(self.parameters)
        self.always = any(ddp.find_unused_parameters for ddp in ddps)
        """DDP's own account of unused parameters goes wrong where some reductions are not its own: none may be."""
        self._flat: list[torch.Tensor] | None = None
        self._before: list[tuple[bool, bool]] | None = None

    @property
    def reduces(self) -> bool:
        """Whether the loop wants a reduction now: not inside no_sync()."""
        if self._before is not None:
            return all(grads for grads, _ in self._before)
        return all(ddp.require_backward_grad_sync for ddp in self._ddps)

    def begin(self) -> None:
        """From here on forward and backward passes wait for nobody."""
        self._before = [(ddp.require_backward_grad_sync, ddp.require_forward_param_sync) for ddp in self._ddps]
        for ddp in self._ddps:
            ddp.require_backward_grad_sync = ddp.require_forward_param_sync = False

    def end(self) -> None:
        """DDP's reducer has its part back."""
        before, self._before = self._before, None
        for ddp, (grads, buffers) in zip(self._ddps, before or (), strict=before is not None):
            ddp.require_backward_grad_sync, ddp.require_forward_param_sync = grads, buffers

    def forget(self) -> None:
        """Gradients that were not reduced must move no parameter."""
        for parameter in self.parameters:
            parameter.grad = None

    def reduce(self, counts: list[float], normaliser: Callable[[list[float]], float]) -> None:
        """The mean over ranks of each gradient that any rank has; all ranks must call.

        Args:
            counts: of this rank, added up over ranks.
            normaliser: from the sums what all ranks' weights add up to; gradients are divided by it.
        """
        for ddp in self._ddps:
            ddp.reducer._rebuild_buckets()  # a collective that DDP's next forward pass owes: not every rank has one
        mine = [float(p.grad is not None) for p in self.parameters]
        sums = self._post_sum(torch.tensor([*counts, *mine], dtype=torch.float64))
        flat, works = self._flat_buckets(), []
        for bucket, buffer in zip(self._buckets, flat, strict=True):
            _fill(buffer, [self.parameters[place] for place in bucket])
            works.append(dist.all_reduce(buffer, group=self._ddps[0].process_group, async_op=True))
        total = sums().tolist()
        by_anyone = total[len(counts) :]
        divisor = self._world_size * normaliser(total[: len(counts)])
        for bucket, buffer, work in zip(self._buckets, flat, works, strict=True):
            if work is not None:
                work.wait()
            buffer.div_(divisor)
            _spread(buffer, [(self.parameters[place], by_anyone[place] > 0) for place in bucket])
        self._sync_buffers()

    def _flat_buckets(self) -> list[torch.Tensor]:
        if self._flat is None:
            self._flat = []
            for bucket in self._buckets:
                first = self.parameters[bucket[0]]
                size = sum(self.parameters[place].numel() for place in bucket)
                self._flat.append(torch.zeros(size, dtype=first.dtype, device=first.device))
        return self._flat

    def _sync_buffers(self) -> None:
        """Rank 0's, as DDP's forward pass does: once an iteration."""
        for ddp in self._ddps:
            if ddp.broadcast_buffers and len(ddp.modules_buffers) > 0:
                with torch.no_grad():
                    ddp._sync_buffers()  # type: ignore[no-untyped-call]


def _buckets(parameters: Sequence[torch.nn.Parameter]) -> list[list[int]]:
    """Places of parameters that travel together: of one kind, up to BUCKET_BYTES; as gradients come, last first."""
    open_: dict[Any, tuple[list[int], int]] = {}
    done: list[list[int]] = []
    for place in reversed(range(len(parameters))):
        parameter = parameters[place]
        kind = (parameter.dtype, parameter.device)
        bucket, held = open_.get(kind, ([], 0))
        held += parameter.numel() * parameter.element_size()
        bucket.append(place)
        open_[kind] = (bucket, held)
        if held >= BUCKET_BYTES:
            done.append(open_.pop(kind)[0])
    return done + [bucket for bucket, _ in open_.values()]


def _fill(buffer: torch.Tensor, parameters: list[torch.nn.Parameter]) -> None:
    offset = 0
    for parameter in parameters:
        view = buffer[offset : offset + parameter.numel()]
        offset += parameter.numel()
        if parameter.grad is None:
            view.zero_()
        elif parameter.grad.is_sparse:
            raise UnsupportedError(
                "claims=True does not reduce sparse gradients: use nn.Embedding(sparse=False), or claims=False"
            )
        else:
            view.copy_(parameter.grad.reshape(-1))


def _spread(buffer: torch.Tensor, parameters: list[tuple[torch.nn.Parameter, bool]]) -> None:
    offset = 0
    for parameter, used in parameters:
        view = buffer[offset : offset + parameter.numel()].view_as(parameter)
        offset += parameter.numel()
        if not used:
            continue
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        parameter.grad.copy_(view)


def refusal(ddps: Sequence[DistributedDataParallel]) -> str | None:
    """Why these models can't be accumulated by hand; None where they can."""
    for ddp in ddps:
        if ddp.static_graph:
            return "claims do not work with static_graph=True: DDP then counts on its own reductions; leave it out"
        if getattr(ddp, "_comm_hooks", None):
            return (
                "claims average gradients themselves and would pass by the model's communication hook: use "
                "claims=False with register_comm_hook()"
            )
        if getattr(ddp, "mixed_precision", None) is not None:
            return "claims do not work with DDP's mixed_precision=: use torch.autocast"
    return None
