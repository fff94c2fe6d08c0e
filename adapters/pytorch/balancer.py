"""The balancer of a job on one rank: joins session, gradients and data; what the loop may ask of it.

Made by balance(), or by hand for loops without a DataLoader: `batch_samples`, `slice(n)`, `step()`.
"""

import atexit
import builtins
import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Unpack

import numpy as np
import torch

from lbbsp.adapters.pytorch.gradients import Gradients
from lbbsp.adapters.pytorch.link import Control
from lbbsp.adapters.pytorch.loader import as_tensor, require_thread
from lbbsp.adapters.pytorch.loose import LooseDraws
from lbbsp.adapters.pytorch.marks import CudaMarks
from lbbsp.adapters.pytorch.memory import LastWords, Memory
from lbbsp.adapters.pytorch.models import as_list, device_of, unwrap
from lbbsp.adapters.pytorch.offers import Settings, of_loose_loop
from lbbsp.adapters.pytorch.survive import Split, Step, Survivor
from lbbsp.errors import ConfigError
from lbbsp.worker.binding import Binding
from lbbsp.worker.cursor import Part
from lbbsp.worker.owntime import HostMarks
from lbbsp.worker.session import Session
from lbbsp.worker.terms import Offer, Terms, settle


class Balancer:
    """One rank's part in a balanced job; all ranks must make one.

    balance() makes it for loops with a DataLoader. Other loops make it themselves, have every rank see the global
    batch, and take `batch[balancer.slice(len(batch))]` or `balancer.batch_samples` samples of their own, then call
    `balancer.step()` at the end of each iteration.

    Args:
        model: a DistributedDataParallel model, compiled or not, or a list of them.
        offer: made by balance(); None takes `settings`.
        settings: as of balance(): global_batch (needed here), min_samples, max_samples, granularity, manager, job,
            mode, predictor, rule, reduction.

    Raises:
        UnsupportedError: a rank can't take part; raised on all ranks.
        ConfigError: ranks disagree on what must be alike.
        BoundsError: no plan fits the bounds.
    """

    def __init__(self, model: Any, offer: Offer | None = None, **settings: Unpack[Settings]) -> None:
        models = as_list(model)
        ddps = [unwrap(model) for model in models]
        offer = offer or of_loose_loop(models, settings)
        self.control = Control(ddps[0].process_group)
        self.clock = time.perf_counter
        offers = self.control.gather(offer)
        self.terms = settle(offers)
        device = device_of(ddps[0])
        marks = CudaMarks(device) if device.type == "cuda" else HostMarks(time.perf_counter)
        self.session = Session(self.control, self.terms, offers, marks, os.environ.get("MASTER_ADDR", "127.0.0.1"))
        self.follower = self.session.follower
        self.at_reduction: list[Callable[[], None]] = []
        """Called at each reduction, after its report has left."""
        self.backwards = 0
        """Backward passes of this rank that have ended."""
        self._cost = settings.get("cost")
        self._reduction = settings.get("reduction") or "mean"
        self._thread = threading.get_ident()
        self._share = 1.0 / self.control.world_size
        self._draws: LooseDraws | None = None
        self._drawn = False
        self._binding = Binding()
        stamp = None if device.type == "cuda" else marks.stamp
        self._gradients = Gradients(
            ddps, stamp, self._ready, self.follower.reduced, self._waiting, self._forward, self._backward_done,
            self.follower.phases,
        )  # fmt: skip
        self.memory = Memory(ddps, self.session.rank, self.terms.bounds)
        self._last_words = LastWords(self.memory)
        self._survivor = Survivor(self, ddps)
        atexit.register(self.close)

    # --- loops without a DataLoader

    @property
    def batch_samples(self) -> int:
        """This rank's samples in the iteration under way."""
        self._draw_once()
        return int(self.follower.in_force.sizes[self.session.rank])

    def slice(self, global_samples: int) -> builtins.slice:
        """This rank's slice of a global batch of so many samples; fewer than X make a short iteration.

        Raises:
            ConfigError: more samples than the global batch.
        """
        if not 0 <= global_samples <= self.terms.bounds.global_batch:
            raise ConfigError(
                f"a batch of {global_samples} samples does not fit the global batch of "
                f"{self.terms.bounds.global_batch}: give the balancer the larger one as global_batch"
            )
        part = self._draw_once().shorten(global_samples)
        return builtins.slice(part.start, part.start + part.samples)

    def step(self) -> None:
        """The iteration has ended: sizes may change now."""
        self._drawn = False

    def _draw_once(self) -> LooseDraws:
        """The draw of the iteration under way."""
        self._draws = self._draws or LooseDraws(self)
        if not self._drawn:
            self._drawn = True
            self._draws.drawn(self._draws.draw())
        return self._draws

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
        total = self.control.sum(weighted)
        if isinstance(value, torch.Tensor):
            return total.reshape(value.shape).to(device=value.device, dtype=value.dtype)
        return float(total)

    def weight(self, *, valid_items: float) -> None:
        """Weigh the batch under way by valid items (pixels, tokens) instead of samples; all ranks must call.

        Call it before backward, with the number of items over which this rank's loss is a mean.
        """
        if not valid_items >= 0:
            raise ConfigError(f"valid_items {valid_items} is no count: give the number of items, 0 or more")
        total = float(self.control.sum(as_tensor(valid_items)))
        self._share = valid_items / total if total > 0 else 0.0
        self._gradients.fixed = self._weight(valid_items, total) if total > 0 else 0.0

    def run(self, step_fn: Step, batch: Any, *, split: Split | None = None, micro_batch: int | None = None) -> Any:
        """Forward and backward over a batch, surviving an out-of-memory; all ranks must call, once a draw.

        Args:
            step_fn: called with the batch or a piece of it; computes the loss and calls backward.
            batch: what the loader gave.
            split: split(batch, start, stop), for batches that are not tensors in tuples, lists and dicts.
            micro_batch: cut into pieces of so many samples, with one reduction; use it as granularity too, so that
                all shapes are alike.

        Returns:
            What step_fn returned; the mean over pieces (the sum with reduction="sum") of numbers and scalar tensors.

        Raises:
            The user's error where a single sample does not fit; MemoryLimitError on the other ranks.
        """
        self._binding.forward(self.memory.samples)
        self._weigh_bound()
        return self._survivor.run(step_fn, batch, self.memory.samples, split, micro_batch)

    def stats(self) -> dict[str, float]:
        """Figures of this rank for any logger: sizes in samples, times in seconds, counts."""
        totals, in_force = self.follower.totals, self.follower.in_force
        lags = totals.lags
        return {
            "lbbsp/iteration": float(totals.iterations),
            "lbbsp/batch_samples": float(in_force.sizes[self.control.rank]),
            "lbbsp/global_batch_samples": float(self.terms.bounds.global_batch),
            "lbbsp/based_on_iteration": float(in_force.based_on_iteration),
            "lbbsp/lag_iterations": float(np.median(lags)) if lags else float("nan"),
            "lbbsp/plan_changes": float(totals.plan_changes),
            "lbbsp/own_time_s": totals.own_time_s / max(1, totals.iterations),
            "lbbsp/wait_s": totals.wait_s / max(1, totals.iterations),
            "lbbsp/planned_share": in_force.beta_ppm / 1e6,
            "lbbsp/manager_away": float(self.session.client.away),
        }

    def close(self) -> None:
        """Leave the job: hooks come off, an embedded manager ends. Called at exit by itself."""
        atexit.unregister(self.close)
        self._last_words.remove()
        self._gradients.remove()
        self.session.close()

    # --- for the loader

    def use(self, part: Part) -> None:
        """A batch was drawn: its gradients will be weighed by this part."""
        self._gradients.fixed = None
        self._binding.drawn(part)
        self.memory.samples = self.memory.at_once = part.samples
        self._weigh_bound()

    def count(self, batch: Any) -> None:
        """A batch of the iteration under way was drawn: count what makes it dear, where the user says how."""
        if self._cost is None:
            return
        cost = float(self._cost(batch))
        if not 0.0 <= cost < math.inf:
            raise ConfigError(f"cost() gave {cost} for a batch: it must count something, 0 or more")
        self.follower.cost += cost

    @property
    def sums(self) -> bool:
        """Whether the loop's loss is a sum over the rank's batch."""
        return self._reduction == "sum"

    @property
    def weighed_by_user(self) -> float | None:
        """The weight that weight() has set for the batch under way; None where samples weigh it."""
        return self._gradients.fixed

    @contextlib.contextmanager
    def weighing(self, samples: int, fixed: float | None) -> Iterator[None]:
        """Backward passes inside are of so many of the batch's samples."""
        part = self._binding.part
        share = samples / part.global_samples if part is not None else 0.0
        mine = self.control.world_size * (float(share > 0) if self.sums else share)
        self._gradients.fixed = mine if fixed is None else fixed
        try:
            yield
        finally:
            self._gradients.fixed = fixed

    def weigh_share(self, share: float) -> None:
        """The backward passes that follow weigh so much of the iteration."""
        self._gradients.fixed = self.control.world_size * (share if not self.sums else float(share > 0))

    def rest(self, share: float) -> None:
        """This rank has worked so much of an iteration and reduced by hand; what follows belongs to no batch."""
        self._binding.clear()
        self._gradients.fixed, self._gradients.weight, self._share = None, 1.0, share

    def reducing(self) -> None:
        """This rank's gradients are ready; the collective that follows is not DDP's."""
        self._ready(None)

    def resume(self, terms: Terms, reductions: int) -> None:
        """Go on after a checkpoint, under terms with its global batch; sizes start from the equal split."""
        self.terms = terms
        self.session.resume(terms, reductions)

    def before_draw(self) -> None:
        """Refuse draws from another thread; raise what went wrong since the last one."""
        require_thread(self._thread)
        if self._gradients.fault is not None:
            raise self._gradients.fault

    # --- inside

    def _forward(self, samples: int | None) -> None:
        self._binding.forward(samples)
        self._weigh_bound()

    def _backward_done(self) -> None:
        self.backwards += 1
        self._binding.backward_done()

    def _weigh_bound(self) -> None:
        part = self._binding.part
        if part is not None and self._gradients.fixed is None:
            self._share = part.samples / part.global_samples
            self._gradients.weight = self._weight(part.samples, part.global_samples)

    def _weight(self, mine: float, whole: float) -> float:
        """W n / X' for a mean over the rank's batch, 1 exactly for an equal part; W for a sum, 0 without samples."""
        world_size = self.control.world_size
        return world_size * mine / whole if self._reduction == "mean" else world_size * float(mine > 0)

    def _ready(self, last_gradient: Any) -> None:
        self.follower.bound_samples = self.memory.worked()
        self.follower.reduction(last_gradient)
        for call in self.at_reduction:
            call()

    def _waiting(self, begins: bool) -> None:
        if begins:
            self.follower.own.stop()
        else:
            self.follower.own.start()
            self.follower.phases.resumed()
