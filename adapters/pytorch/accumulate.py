"""One iteration's gradients, accumulated over micro-batches without DDP's reducer and averaged once, by hand.

Each micro-batch's gradient is weighed as it accumulates (gradients.py), so the mean over ranks of the sums is the mean
over the global batch. Flat buckets, as few collectives as DDP's; a parameter that no rank used keeps no gradient.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lbbsp.adapters.pytorch.buckets import Bucket, places_together

COUNTS = 3
"""Numbers that ranks add up beside their gradients."""

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
        self._places = places_together(self.parameters)
        self._buckets: list[Bucket] = []
        self.always = any(ddp.find_unused_parameters for ddp in ddps)
        """DDP's own account of unused parameters goes wrong where some reductions are not its own: none may be."""
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

    def reduce(
        self, counts: list[float], normaliser: Callable[[list[float]], float], under_way: Callable[[], None]
    ) -> None:
        """The mean over ranks of each gradient that any rank has; all ranks must call.

        Args:
            counts: of this rank, COUNTS of them, added up over ranks.
            normaliser: from the sums what all ranks' weights add up to; gradients are divided by it.
            under_way: called when the collectives are: what must not hold them up.
        """
        for ddp in self._ddps:
            ddp.reducer._rebuild_buckets()  # a collective that DDP's next forward pass owes: not every rank has one
        mine = [*counts, *(float(p.grad is not None) for p in self.parameters)]
        buckets = self._made()
        together, works = self._carries, []
        posted = None if together else self._post_sum(torch.tensor(mine, dtype=torch.float64))
        for number, bucket in enumerate(buckets):
            bucket.fill(mine if together and number == 0 else ())
            works.append(dist.all_reduce(bucket.buffer, group=self._ddps[0].process_group, async_op=True))
        under_way()
        sums = posted().tolist() if posted is not None else []
        divisor = float(self._world_size)
        for number, (places, bucket, work) in enumerate(zip(self._places, buckets, works, strict=True)):
            if work is not None:
                work.wait()
            if number == 0:
                sums = sums or bucket.more()
                divisor *= normaliser(sums[: len(counts)])
            bucket.spread([sums[len(counts) + place] > 0 for place in places], divisor)
        self._sync_buffers()

    @property
    def _carries(self) -> bool:
        """Whether the first bucket can carry our counts: on a CPU, of a kind that counts exactly."""
        first = self.parameters[self._places[0][0]]
        return first.device.type == "cpu" and first.dtype in (torch.float32, torch.float64)

    def _made(self) -> list[Bucket]:
        """The buckets; made at their first use, since they are as large as the model."""
        if not self._buckets:
            room = COUNTS + len(self.parameters) if self._carries else 0
            for number, places in enumerate(self._places):
                self._buckets.append(Bucket([self.parameters[place] for place in places], 0 if number else room))
        return self._buckets

    def _sync_buffers(self) -> None:
        """Rank 0's, as DDP's forward pass does: once an iteration."""
        for ddp in self._ddps:
            if ddp.broadcast_buffers and len(ddp.modules_buffers) > 0:
                with torch.no_grad():
                    ddp._sync_buffers()  # type: ignore[no-untyped-call]


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
