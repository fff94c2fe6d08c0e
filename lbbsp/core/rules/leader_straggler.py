"""The rule `leader-straggler`, the paper's for GPU clusters (Chen et al., SoCC 2020, section 3.3).

Within an observation window the mean time of each rank is taken; then the fastest rank with memory to spare gains
a step of samples and the slowest loses it. When a move swings back the step halves and the window doubles.
Times in seconds, sizes in samples.
"""

import numpy as np

from lbbsp.core.rules.base import Array, Bounds, IntArray, within

_LONGEST_WINDOW = 160


class LeaderStraggler:
    """A few samples at a time from straggler to leader.

    Args:
        ranks: of the job.
        global_batch: X, in samples.
        step_samples: of the first moves; default X / 32.
        window: iterations between moves, at first.
    """

    def __init__(self, ranks: int, global_batch: int, step_samples: int | None = None, window: int = 5) -> None:
        self._step = max(1, step_samples or global_batch // 32)
        self._window = window
        self._sizes: IntArray | None = None
        self._total: Array = np.zeros(ranks)
        self._count: Array = np.zeros(ranks)
        self._iterations = 0
        self._moved: tuple[int, int] | None = None

    def propose(self, samples: Array, time_s: Array, bounds: Bounds, iterations: int = 1) -> IntArray:
        """Learn from what closed; the sizes to use next. See Rule."""
        sizes = bounds.equal() if self._sizes is None else within(self._sizes, bounds)
        self._sizes = sizes
        known = np.isfinite(time_s) & (samples == sizes)
        self._total += iterations * np.where(known, time_s, 0.0)
        self._count += iterations * known
        self._iterations += iterations
        if self._iterations >= self._window and (self._count > 0).all():
            self._move(self._total / self._count, bounds)
            self._total[:], self._count[:], self._iterations = 0.0, 0.0, 0
        return self._sizes

    def _move(self, mean_s: Array, bounds: Bounds) -> None:
        sizes = self._sizes
        if sizes is None:
            return
        unit = bounds.granularity
        can_gain = sizes + unit <= bounds.max_samples
        can_lose = sizes - unit >= bounds.min_samples
        if not can_gain.any() or not can_lose.any():
            return
        leader = int(np.argmin(np.where(can_gain, mean_s, np.inf)))
        straggler = int(np.argmax(np.where(can_lose, mean_s, -np.inf)))
        if leader == straggler:
            return
        if self._moved == (straggler, leader):
            self._step, self._window = max(1, self._step // 2), min(2 * self._window, _LONGEST_WINDOW)
        room = min(
            int(bounds.max_samples[leader] - sizes[leader]), int(sizes[straggler] - bounds.min_samples[straggler])
        )
        moved = min(max(unit, self._step // unit * unit), room // unit * unit)
        self._sizes = sizes.copy()
        self._sizes[leader] += moved
        self._sizes[straggler] -= moved
        self._moved = (leader, straggler)
