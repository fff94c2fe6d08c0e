"""The balancer of a job on one rank: joins session, gradients and data; what the loop may ask of it.

Made by balance(), or by hand for loops without a DataLoader: `batch_samples`, `slice(n)`, `step()`.
"""

import atexit
import os
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from lbbsp.adapters.pytorch.gradients import Gradients
from lbbsp.adapters.pytorch.link import Control
from lbbsp.adapters.pytorch.loader import as_tensor, require_thread
from lbbsp.adapters.pytorch.marks import CudaMarks
from lbbsp.adapters.pytorch.models import bounds_minimum, device_of, is_compiled, unwrap
from lbbsp.core.bounds import Bounds
from lbbsp.errors import ConfigError
from lbbsp.worker.cursor import Part
from lbbsp.worker.identity import device_name, machine_name
from lbbsp.worker.owntime import HostMarks
from lbbsp.worker.session import Session, manager_address
from lbbsp.worker.terms import Offer, settle

MODES = ("balance", "observe")
REDUCTIONS = ("mean", "sum")


class Balancer:
    """One rank's part in a balanced job.

    Args:
        models: the DDP models of the loop, compiled or not; all use the same process group.
        offer: what this rank brings; see `offer()`.
        reduction: how the loop's loss reduces over the rank's batch: "mean" or "sum".

    Raises:
        UnsupportedError: a rank can't take part; raised on all ranks.
        ConfigError: ranks disagree on what must be alike.
        BoundsError: no plan fits the bounds.
    """

    def __init__(self, models: Sequence[Any], offer: Offer, *, reduction: str = "mean") -> None:
        ddps = [unwrap(model) for model in models]
        self._control = Control(ddps[0].process_group)
        self._reduction = reduction
        self._thread = threading.get_ident()
        self.clock = time.perf_counter
        offers = self._control.gather(offer)
        self.terms = settle(offers)
        device = device_of(ddps[0])
        marks = CudaMarks(device) if device.type == "cuda" else HostMarks(time.perf_counter)
        master = os.environ.get("MASTER_ADDR", "127.0.0.1")
        self.session = Session(self._control, self.terms, offers, marks, master)
        self.follower = self.session.follower
        self._part: Part | None = None
        self._share = 1.0 / self._control.world_size
        stamp = None if device.type == "cuda" else marks.stamp
        self._gradients = Gradients(ddps, stamp, self.follower.reduction, self.follower.reduced, self._waiting)
        atexit.register(self.close)

    # --- what a loop may ask

    def mean(self, value: Any) -> Any:
        """The mean over the global batch of a mean over this rank's part of it; all ranks must call.

        Args:
            value: a number or a tensor of one element, such as the loss. On a rank without samples it may be NaN.

        Returns:
            A float, or a detached tensor like the one given.
        """
        mine = as_tensor(value)
        weighted = mine * self._share if self._share > 0 else torch.zeros_like(mine)
        total = self._control.sum(weighted)
        if isinstance(value, torch.Tensor):
            return total.reshape(value.shape).to(device=value.device, dtype=value.dtype)
        return float(total)

    def weight(self, *, valid_items: float) -> None:
        """Weigh the batch under way by valid items (pixels, tokens) instead of samples; all ranks must call.

        Call it before backward, with the number of items over which this rank's loss is a mean.
        """
        if not valid_items >= 0:
            raise ConfigError(f"valid_items {valid_items} is no count: give the number of items, 0 or more")
        total = float(self._control.sum(as_tensor(valid_items)))
        self._weigh(valid_items / total if total > 0 else 0.0)

    def stats(self) -> dict[str, float]:
        """Figures of this rank for any logger: sizes in samples, times in seconds, counts."""
        totals, in_force = self.follower.totals, self.follower.in_force
        lags = totals.lags
        return {
            "lbbsp/iteration": float(totals.iterations),
            "lbbsp/batch_samples": float(in_force.sizes[self._control.rank]),
            "lbbsp/global_batch_samples": float(self.terms.bounds.global_batch),
            "lbbsp/based_on_iteration": float(in_force.based_on_iteration),
            "lbbsp/lag_iterations": float(np.median(lags)) if lags else float("nan"),
            "lbbsp/plan_changes": float(totals.plan_changes),
            "lbbsp/own_time_s": totals.own_time_s / max(1, totals.iterations),
            "lbbsp/wait_s": totals.wait_s / max(1, totals.iterations),
            "lbbsp/manager_away": float(self.session.client.away),
        }

    def close(self) -> None:
        """Leave the job: hooks come off, an embedded manager ends. Called at exit by itself."""
        atexit.unregister(self.close)
        self._gradients.remove()
        self.session.close()

    # --- for the loader

    def use(self, part: Part) -> None:
        """The batch under way is this part."""
        self._part = part
        self._weigh(part.samples / part.global_samples)

    def resume(self, global_batch: int, seed: int, reductions: int) -> None:
        """Go on after a checkpoint: the global batch is the checkpoint's, sizes start from the equal split."""
        old = self.terms.bounds
        most = np.where(old.max_samples >= old.global_batch, global_batch, old.max_samples)
        bounds = Bounds(global_batch, old.min_samples, np.minimum(most, global_batch), old.granularity)
        bounds.check()
        self.terms = replace(self.terms, bounds=bounds, seed=seed)
        self.session.resume(self.terms, reductions)

    def before_draw(self) -> None:
        """Refuse draws from another thread; raise what went wrong since the last one."""
        require_thread(self._thread)
        if self._gradients.fault is not None:
            raise self._gradients.fault

    # --- inside

    def _weigh(self, share: float) -> None:
        self._share = share
        world_size = self._control.world_size
        self._gradients.weight = world_size * (share if self._reduction == "mean" else float(share > 0))

    def _waiting(self, begins: bool) -> None:
        if begins:
            self.follower.own.stop()
        else:
            self.follower.own.start()


def offer(models: Sequence[Any], **given: Any) -> Offer:
    """This rank's offer: what the caller gives, and what the models and the machine say of themselves."""
    ddp = unwrap(models[0])
    device = device_of(ddp)
    least = bounds_minimum([unwrap(model) for model in models], any(is_compiled(model) for model in models))
    if given.get("min_samples") is None:
        given["min_samples"] = least
    nonce = uuid.uuid4().hex
    return Offer(
        job=given.pop("job", None) or os.environ.get("LBBSP_JOB") or nonce,
        incarnation=nonce,
        seed=int(torch.initial_seed() % 2**31),
        manager=manager_address(given.pop("manager", None)),
        device_kind=device.type,
        machine=machine_name(),
        device=device_name(device.type, device.index),
        **given,
    )
