"""Sizes of a plan: exact min-max allocation of a global batch over time curves, bounds and granularity.

Knows nothing of reports, forecasts or the wire. Arrays have one entry per rank, in order of rank; sizes in
samples, times in seconds. Inside, sizes are counted in units of the granularity.
"""

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from lbbsp.core.bounds import Bounds, IntArray

Array = npt.NDArray[np.float64]
_MAX_STEPS = 200
"""Far above what bisection needs; ends the search where rounding makes a curve a staircase."""

__all__ = ["Bounds", "Curves", "TimeCurves", "allocate", "fits", "short_slices"]


class TimeCurves(Protocol):
    """What sizing asks of curves: times that never fall when a size grows."""

    def time_s(self, samples: IntArray | Array) -> Array:
        """Own time of each rank at these sizes."""

    def most_within(self, time_s: float) -> Array:
        """Samples that each rank can do in a time; may be off by rounding, below zero or infinite."""

    def take(self, ranks: IntArray) -> Self:
        """The curves of some ranks only."""

    def no_plan_before_s(self, total_samples: int) -> float:
        """A time, cheap to tell, before which no plan of so many samples can end."""


@dataclass(frozen=True, eq=False)
class Curves:
    """t(x) = max(flat_s, offset_s + slope_s * x): a fixed cost and one per sample; flat below saturation."""

    flat_s: Array
    offset_s: Array
    slope_s: Array

    def time_s(self, samples: IntArray | Array) -> Array:
        """Own time of each rank at these sizes."""
        return np.maximum(self.flat_s, self.offset_s + self.slope_s * samples)

    def most_within(self, time_s: float) -> Array:
        """Samples that each rank can do in a time; infinite where more samples cost nothing."""
        free = self.slope_s <= 0
        most = (time_s - self.offset_s) / np.where(free, 1.0, self.slope_s)
        most = np.where(free & (most >= 0), np.inf, most)
        return np.where(time_s >= self.flat_s, most, -1.0)

    def take(self, ranks: IntArray) -> "Curves":
        """The curves of some ranks only."""
        return Curves(self.flat_s[ranks], self.offset_s[ranks], self.slope_s[ranks])

    def slowed(self, times: Array) -> "Curves":
        """The same devices so many times slower, (ranks,)."""
        return Curves(times * self.flat_s, times * self.offset_s, times * self.slope_s)

    def no_plan_before_s(self, total_samples: int) -> float:
        """Where all ranks end together on their lines alone, without bounds, in fractions of samples."""
        if not (self.slope_s > 0).all():
            return 0.0
        rate = 1.0 / self.slope_s
        return float((total_samples + (self.offset_s * rate).sum()) / rate.sum())


def allocate(curves: TimeCurves, bounds: Bounds) -> IntArray:
    """Sizes, int64 (ranks,), that minimise the largest t_i(x_i) exactly, within the bounds.

    Where a rank is too slow even at its minimum, the others are still balanced among themselves; where curves
    leave a choice, the sizes are as equal as they can be. Deterministic.

    Raises:
        BoundsError: the bounds allow no plan.
        ValueError: a curve is not finite at the sizes in question.
    """
    start = bounds.equal()
    times = curves.time_s(start)
    if not np.isfinite(times).all():
        raise ValueError(f"curves must be finite at the equal split; rank {int(np.argmin(np.isfinite(times)))} is not")
    search = _Search(curves, bounds)
    search.within_bracket(float(times.min()), float(times.max()), start // bounds.granularity)
    return search.result * bounds.granularity


class _Search:
    """Bisection over the time T of an iteration, between times at which some rank could really end.

    Invariant: `least` fits in any time below T, `most` in the upper end of the bracket, and
    sum(least) <= total <= sum(most). Ranks whose two ends meet are decided and leave the arrays.
    """

    def __init__(self, curves: TimeCurves, bounds: Bounds) -> None:
        self._curves, self._unit = curves, bounds.granularity
        self._total = bounds.global_batch // bounds.granularity
        self._least, self._most = bounds.units()
        self._ranks = np.arange(bounds.world_size)
        self.result = self._least.copy()
        """Units of each rank; final after within_bracket()."""

    def within_bracket(self, low_s: float, high_s: float, feasible: IntArray) -> None:
        """Find the result, knowing that `feasible` units end at high_s and that no plan ends before low_s."""
        self._most = np.maximum(self._within(high_s), feasible)
        for step in range(_MAX_STEPS):
            self._drop_decided()
            if int(self._most.sum()) == self._total or not low_s < high_s:
                break
            time_s = self._between(low_s, high_s, step)
            units = self._within(time_s)
            if int(units.sum()) >= self._total:
                high_s, self._most = self._last_end(units, time_s), units
            else:
                low_s, self._least = self._next_end(units), units
        self.result[self._ranks] = Bounds(self._total, self._least, self._most).equal()

    def _between(self, low_s: float, high_s: float, step: int) -> float:
        """By interpolation of the sums, which are nearly straight in time; every third time in the middle."""
        below, above = int(self._least.sum()), int(self._most.sum())
        share = 0.5 if step % 3 == 0 else (self._total - below) / (above - below)
        time_s = low_s + (high_s - low_s) * share
        return time_s if time_s < high_s else low_s

    def _drop_decided(self) -> None:
        open_ = self._least < self._most
        if int(np.count_nonzero(open_)) * 4 > 3 * len(open_):
            return
        self.result[self._ranks] = self._least
        self._total -= int(self._least[~open_].sum())
        kept = np.flatnonzero(open_)
        self._ranks, self._least, self._most = self._ranks[kept], self._least[kept], self._most[kept]
        self._curves = self._curves.take(kept)

    def _time_s(self, units: IntArray) -> Array:
        return self._curves.time_s(units * self._unit)

    def _within(self, time_s: float) -> IntArray:
        """Most units within a time, exact by the forward curve where the inverse is off by rounding."""
        guess = np.floor(self._curves.most_within(time_s) / self._unit)
        units = np.clip(guess, self._least, self._most).astype(np.int64)
        units += (units < self._most) & (self._time_s(units + 1) <= time_s)
        units -= (units > self._least) & (self._time_s(units) > time_s)
        return units

    def _last_end(self, units: IntArray, time_s: float) -> float:
        """The latest time, up to time_s, at which a rank ends that was given more than its least."""
        ends = self._time_s(units)[units > self._least]
        return min(float(ends.max()), time_s) if len(ends) else time_s

    def _next_end(self, units: IntArray) -> float:
        """The earliest time at which some rank could end one unit more."""
        room = units < self._most
        return float(self._time_s(units + 1)[room].min()) if room.any() else float("inf")


def short_slices(sizes: IntArray, global_batch: int, remaining: int) -> tuple[IntArray, IntArray]:
    """Offsets and counts of each rank, int64 (ranks,), in a short last iteration of `remaining` samples.

    Of a plan with sum X and X' remaining samples, the rank at offset o with x samples takes
    floor(o X'/X) .. floor((o + x) X'/X) (design.md, rule 1): the slices touch and fill the rest exactly.

    Raises:
        ValueError: remaining lies outside 0 .. global_batch, or the sizes don't add up to global_batch.
    """
    ends = np.cumsum(np.asarray(sizes, dtype=np.int64))
    if not len(ends) or int(ends[-1]) != global_batch:
        raise ValueError(f"sizes must add up to the global batch {global_batch}, got {int(sum(sizes))}")
    if not 0 <= remaining <= global_batch:
        raise ValueError(f"remaining samples must lie in 0 .. {global_batch}, got {remaining}")
    edges = np.concatenate([np.zeros(1, dtype=np.int64), ends]) * remaining // global_batch
    return edges[:-1], np.diff(edges)


def fits(sizes: IntArray, bounds: Bounds) -> str | None:
    """Why sizes break rule 1 (sum, bounds, granularity), or None where they keep it."""
    sizes = np.asarray(sizes)
    if sizes.shape != bounds.min_samples.shape:
        return f"{sizes.size} sizes for {bounds.world_size} ranks"
    if (total := int(sizes.sum())) != bounds.global_batch:
        return f"sizes add up to {total}, not to the global batch {bounds.global_batch}"
    for wrong, rule in (
        (sizes < bounds.min_samples, "below its minimum"),
        (sizes > bounds.max_samples, "above its maximum"),
        (sizes % bounds.granularity != 0, f"no multiple of {bounds.granularity}"),
    ):
        if wrong.any():
            rank = int(np.argmax(wrong))
            return f"rank {rank} has {int(sizes[rank])} samples, {rule}"
    return None
