"""Claims on a recorded job: the manager's plans, of which ranks work the safe part and claim the rest.

At best: what is claimed goes where it ends soonest, in whole samples; neither the micro-batches' fixed costs nor waits
for the counter are in a recording. Sizes in samples, times in seconds.
"""

from collections import deque
from dataclasses import replace

import numpy as np

from lbbsp.core.bounds import Bounds, IntArray
from lbbsp.core.manager import BatchSizeManager, JobSpec, PlanMade, RejectedReport
from lbbsp.core.parts import WHOLE_PPM, planned_parts
from lbbsp.core.sizing import allocate
from lbbsp.replay import steps
from lbbsp.world import Array, Clock, Mask


class Claimed:
    """A policy: the manager of real jobs that claim; `lookahead` plans are under way at any time."""

    def __init__(
        self, bounds: Bounds, predictor: str, sensors: tuple[str, ...], lookahead: int, train_steps: int
    ) -> None:
        self._manager = BatchSizeManager(JobSpec(bounds, lookahead, sensors, claims="on"), predictor)
        first = PlanMade(0, -1, bounds.equal(), False)
        self._plans = deque([first] * (lookahead + 1))
        self._bounds, self._train_steps = bounds, train_steps

    def sizes(self, world: Clock) -> IntArray:
        """What ranks end up with: at least their planned parts."""
        plan, parts = self._plans[0].sizes, self._parts()
        if parts is plan:
            return plan
        most = np.maximum(self._bounds.max_samples, parts)
        return allocate(world.curves(), replace(self._bounds, min_samples=parts, max_samples=most))

    def heard(self, iteration: int, sizes: IntArray, time_s: Array, sensors: Array, known: Mask) -> None:
        """Hand the reports to the manager; its plan is used lookahead iterations later."""
        plan, claimed = self._plans[-1], sizes - self._parts()
        for rank in np.flatnonzero(known).tolist():
            try:
                made = self._manager.report(
                    rank, iteration, int(sizes[rank]), float(time_s[rank]), sensors=sensors[rank].tolist(),
                    claimed=int(claimed[rank]),
                )  # fmt: skip
            except RejectedReport:
                continue
            plan = made or plan
        self._manager.train(steps(self._train_steps))
        self._plans.append(plan)
        self._plans.popleft()

    def _parts(self) -> IntArray:
        made = self._plans[0]
        return planned_parts(made.sizes, round(WHOLE_PPM * made.beta), self._bounds.granularity)
