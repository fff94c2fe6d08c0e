"""Few distinct sizes: what a size costs where it is new (a recompilation, a CUDA graph) counts before it is used.

Wraps another rule. Sizes are multiples of a coarse step; new sizes are taken only where they are predicted to earn,
within a horizon of iterations, more than it costs to compile for them. Times in seconds, sizes in samples.
"""

from dataclasses import replace

import numpy as np

from lbbsp.core.rules.adaptive import Adaptive
from lbbsp.core.rules.base import Array, Bounds, IntArray
from lbbsp.core.sizing import fits

HORIZON = 200
"""Iterations in which a new size must have earned its cost."""


class Menu:
    """`adaptive` with few sizes.

    Args:
        ranks: of the job.
        global_batch: X, in samples.
        step_samples: sizes are multiples of it where the bounds let them be; default X / 64.
        new_size_s: cost of a size that a rank has not had.
    """

    def __init__(
        self, ranks: int, global_batch: int, step_samples: int | None = None, new_size_s: float = 10.0
    ) -> None:
        self._rule = Adaptive(ranks, global_batch)
        self._step = max(1, step_samples or global_batch // 64)
        self._new_size_s = new_size_s
        self._had: list[set[int]] = [set() for _ in range(ranks)]
        self._sizes: IntArray | None = None

    def propose(self, samples: Array, time_s: Array, bounds: Bounds, iterations: int = 1) -> IntArray:
        """Learn from what closed; the sizes to use next. See Rule."""
        coarse = replace(bounds, granularity=self._coarse(bounds))
        wanted = self._rule.propose(samples, time_s, coarse, iterations)
        if self._sizes is None or fits(self._sizes, bounds) or self._earns(wanted):
            self._sizes = wanted
        for had, size in zip(self._had, self._sizes.tolist(), strict=True):
            had.add(size)
        return self._sizes

    def _coarse(self, bounds: Bounds) -> int:
        """The coarsest multiple of the job's granularity, up to the step, that allows a plan."""
        unit = bounds.granularity
        for times in range(max(1, self._step // unit), 0, -1):
            if replace(bounds, granularity=times * unit).possible():
                return times * unit
        return unit

    def _earns(self, wanted: IntArray) -> bool:
        if self._sizes is None or not self._rule.fit.seen.any():
            return True
        curves = self._rule.fit.curves()
        gain_s = float(curves.time_s(self._sizes).max() - curves.time_s(wanted).max())
        new = any(size not in had for had, size in zip(self._had, np.asarray(wanted).tolist(), strict=True))
        return gain_s * HORIZON > (self._new_size_s if new else 0.0)
