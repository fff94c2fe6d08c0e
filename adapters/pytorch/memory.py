"""What a rank's device can hold: readings for the memory model, and the user's out-of-memory error, told in full.

In the two-line form an out-of-memory ends the run: the error gets a note with rank, batch and the lowered bound, which
is kept for the restart. Bytes and samples.
"""

import hashlib
import logging
import math
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lbbsp.core.bounds import Bounds
from lbbsp.core.memory import MemoryModel, Reading
from lbbsp.worker import remembered
from lbbsp.worker.identity import device_name

log = logging.getLogger(__name__)

READ_EVERY = 10
"""Iterations between readings of what is free: the driver is asked."""
RESTART_SHARE = 0.7
"""Of the largest batch that has worked: the bound of a restart, since another crash costs more than slack."""
CPU_MESSAGE = "DefaultCPUAllocator: can't allocate memory"


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether a device, or the CPU allocator, had no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and (CPU_MESSAGE in str(error) or "out of memory" in str(error))


def gpu_uuid(device: torch.device) -> str | None:
    """NVML's name of a GPU, whatever CUDA_VISIBLE_DEVICES makes of its index."""
    if device.type != "cuda":
        return None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"


def key_of(ddp: DistributedDataParallel) -> str:
    """Names this model on this device, across restarts of the job."""
    shapes = ",".join(str(tuple(parameter.shape)) for parameter in ddp.module.parameters())
    device = next(ddp.parameters()).device
    place = os.environ.get("LOCAL_RANK", str(dist.get_rank(ddp.process_group)))
    job = os.environ.get("LBBSP_JOB") or os.environ.get("TORCHELASTIC_RUN_ID") or ""
    model = hashlib.sha256(shapes.encode()).hexdigest()[:16]
    return f"{job}|{device_name(device.type, device.index)}|{place}|{model}"


def most_samples(wanted: int | None, ddp: DistributedDataParallel) -> int | None:
    """The user's bound of this rank, or the one that an earlier out-of-memory left where that is tighter."""
    kept = remembered.recall(key_of(ddp))
    if kept is None or (wanted is not None and wanted <= kept.max_samples):
        return wanted
    log.warning(
        "rank %d takes at most %d samples: %d ran out of memory before; delete %s to try again",
        dist.get_rank(ddp.process_group),
        kept.max_samples,
        kept.failed_samples,
        remembered.path_of(key_of(ddp)),
    )
    return kept.max_samples


class Memory:
    """The memory of one rank's device.

    Args:
        ddps: the job's models.
        rank: in the job.
        bounds: of the job.
    """

    def __init__(self, ddps: Sequence[DistributedDataParallel], rank: int, bounds: Bounds) -> None:
        self.model = MemoryModel(int(bounds.max_samples[rank]), int(bounds.min_samples[rank]))
        self._device = next(ddps[0].parameters()).device
        self._on_cuda = self._device.type == "cuda"
        self._key, self._rank = key_of(ddps[0]), rank
        self._reads = 0
        self.samples = 0
        """In the batch under way ..."""
        self.at_once = 0
        """... and of them in one forward pass; fewer where the batch was cut."""

    def worked(self) -> int:
        """The batch under way has worked; the bound, 0 while nothing is known to bound."""
        if not self._on_cuda and self.at_once <= self.model.proven_samples:
            return self.model.bound() if self.model.failures else 0
        self.model.learn(self._reading(self.at_once))
        known = self.model.failures > 0 or self._on_cuda
        return self.model.bound() if known else 0

    def failed(self, samples: int) -> int:
        """A batch did not fit; the lowered bound."""
        return self.model.failed(samples, self._budget_bytes())

    def tell(self, error: BaseException, samples: int) -> BaseException:
        """The user's error with rank, batch and lowered bound."""
        self.failed(samples)
        lowered = max(1, int(RESTART_SHARE * self.model.proven_samples) or samples // 2)
        kept = remembered.remember(self._key, lowered, samples)
        note = (
            f"lbbsp: rank {self._rank} ran out of memory with a batch of {samples} samples; lowered bound: {lowered}. "
            f"{'A restart uses it' if kept else f'Restart with max_samples={lowered} on this rank'}; with "
            "balancer.run(step_fn, batch) a loop survives this"
        )
        error.add_note(note)
        log.error(note)
        return error

    def _reading(self, samples: int) -> Reading:
        self._reads += 1
        if not self._on_cuda or self._reads % READ_EVERY:
            return Reading(samples, math.nan, self.model.budget_bytes)
        peak = float(torch.cuda.max_memory_allocated(self._device))
        torch.cuda.reset_peak_memory_stats(self._device)
        return Reading(samples, peak, self._budget_bytes())

    def _budget_bytes(self) -> float:
        """What this process holds and what is free on the device; NaN on CPUs."""
        if not self._on_cuda:
            return math.nan
        free, _ = torch.cuda.mem_get_info(self._device)
        return float(torch.cuda.memory_reserved(self._device) + free)


class LastWords:
    """While installed, an out-of-memory that ends the program is told in full."""

    def __init__(self, memory: Memory) -> None:
        self._before: Callable[..., Any] = sys.excepthook
        held = weakref.ref(memory)
        before = self._before

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            alive = held()
            if alive is not None and is_out_of_memory(error) and not getattr(error, "__notes__", None):
                alive.tell(error, alive.samples)
            before(kind, error, trace)

        self._hook = sys.excepthook = hook

    def remove(self) -> None:
        """Put back what was there, unless somebody else has come since."""
        if sys.excepthook is self._hook:
            sys.excepthook = self._before
