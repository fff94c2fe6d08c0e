"""The job's own CPU control group: for the plan's messages, and for the training thread's small sums.

A gloo group over the ranks of the model's process group, with its timeout. Each such group wakes a thread of its own
on every rank a hundred times a second, which costs 2 ms of a core (torch 2.13), so that there are two only where
messages and sums are both collectives, whose order ranks could see differently, or where torch counts both
(TORCH_DISTRIBUTED_DEBUG=DETAIL). Knows nothing of plans.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from lbbsp.prompt import prompt_threads
from lbbsp.worker.vector import IntArray, payload_length

FEW = 16
"""Up to so many ranks rank 0 sends to each: gloo's broadcast goes through two more threads on every rank."""
PLAN_TAG = 1


class Control:
    """Gathers, sums and broadcasts among the ranks of one model.

    Args:
        process_group: the model's own.
    """

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        self.ranks = dist.get_process_group_ranks(process_group)
        self.rank = dist.get_rank(process_group)
        self.world_size = len(self.ranks)
        self._timeout = _timeout(process_group)
        self._plans = _cpu_group(self.ranks, self._timeout)
        counted = dist.get_debug_level() == dist.DebugLevel.DETAIL  # type: ignore[attr-defined]
        self._sums = self._plans if self._few and not counted else _cpu_group(self.ranks, self._timeout)
        self._gathers: dist.ProcessGroup | None = None

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in order of rank; all ranks must call."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._sums)
        return values

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over ranks of a CPU tensor, in place; all ranks must call."""
        dist.all_reduce(values, group=self._sums)
        return values

    @property
    def timeout(self) -> timedelta:
        """Of the model's process group."""
        return self._timeout

    @property
    def _few(self) -> bool:
        return self.world_size <= FEW

    def post_sum(self, values: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Begin to add up a CPU tensor over the ranks, in place; what is returned waits for it."""
        work = dist.all_reduce(values, group=self._sums, async_op=True)

        def wait() -> torch.Tensor:
            if work is not None:
                work.wait()
            return values

        return wait

    def post_gather(self, value: int) -> Callable[[], IntArray]:
        """Begin to gather one number of each rank; what is returned waits for them, (ranks,)."""
        if self._gathers is None:
            raise RuntimeError("prepare_gathers() comes first")
        mine = torch.tensor([value], dtype=torch.int64)
        theirs = [torch.empty(1, dtype=torch.int64) for _ in self.ranks]
        work = self._gathers.allgather([theirs], [mine])

        def wait() -> IntArray:
            work.wait()
            return np.array([int(one) for one in theirs], dtype=np.int64)

        return wait

    def prepare_gathers(self) -> None:
        """Make the group of post_gather(); all ranks must call."""
        if self._gathers is None:
            self._gathers = _cpu_group(self.ranks, self._timeout)

    def send(self, payload: IntArray) -> None:
        """Rank 0: send a plan's payload to all others; returns when they have it."""
        payload_tensor = torch.from_numpy(payload)
        if not self._few:
            self._broadcast(payload_tensor).wait()
            return
        works = [self._plans.send([payload_tensor], rank, PLAN_TAG) for rank in range(1, self.world_size)]
        for work in works:
            work.wait()

    def receive(self) -> Callable[[], IntArray]:
        """Others: post the receive of the next payload; what is returned waits for it."""
        payload = torch.empty(payload_length(self.world_size), dtype=torch.int64)
        work = self._plans.recv([payload], 0, PLAN_TAG) if self._few else self._broadcast(payload)

        def wait() -> IntArray:
            work.wait()
            array: IntArray = payload.numpy()
            return array

        return wait

    def _broadcast(self, payload: torch.Tensor) -> dist.Work:
        """By the group itself: it still works when the program has destroyed torch's registry of groups."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        return self._plans.broadcast([payload], options)


def _cpu_group(ranks: list[int], timeout: timedelta) -> dist.ProcessGroup:
    with prompt_threads():
        group = dist.new_group(ranks, timeout=timeout, backend="gloo", use_local_synchronization=True)
    if not isinstance(group, dist.ProcessGroup):
        raise RuntimeError(f"this process is none of the ranks {ranks} of the model's process group")
    return group


def _timeout(process_group: dist.ProcessGroup) -> timedelta:
    """The timeout of the model's group, where torch tells it."""
    for device in process_group._device_types:
        options = getattr(process_group._get_backend(device), "options", None)
        timeout = getattr(options, "_timeout", None)
        if isinstance(timeout, timedelta):
            return timeout
    return dist.default_pg_timeout if hasattr(dist, "default_pg_timeout") else timedelta(minutes=30)
