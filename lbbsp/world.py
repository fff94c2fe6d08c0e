"""The world of a recording: what hypothetical sizes would have cost, and what would have been known when.

The recording tells the speed of each worker at each moment; the time of any sizes follows from it. Where it says
when iterations started, time runs by that clock, so that faster plans meet the same neighbours at the same moment;
else the k-th iteration meets the k-th recorded one. Times in seconds, sizes in samples.
"""

import numpy as np
import numpy.typing as npt

from lbbsp.core.curves import CurveFit
from lbbsp.core.sizing import Bounds, Curves
from lbbsp.recording import Recording

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

FINEST = 2000
"""Samples of an average share in a replay: recorded samples are scaled up, so that rounding costs nothing."""


class World:
    """What a recording says of its workers: their speed at each moment, held where there is a gap.

    Iteration k takes worker i (fixed + x) / speed seconds for x samples, fixed being its cost beside samples.
    """

    def __init__(self, recording: Recording, limit: int | None = None) -> None:
        present = np.isfinite(recording.own_time_s)
        rows = np.flatnonzero(2 * present.sum(1) >= len(recording.workers))[:limit]
        self.recording = recording
        self.known: Mask = present[rows]
        self.samples: Array = recording.samples[rows]
        self.own_time_s: Array = recording.own_time_s[rows]
        self.sent: Array = recording.sent()[rows]
        self.at_start: Array = recording.at_start[rows]
        self.start_s: Array = recording.start_s[rows]
        self.fixed = fixed_costs(self.samples, self.own_time_s)
        self.speed: Array = held((self.fixed + self.samples) / self.own_time_s)

    @property
    def iterations(self) -> int:
        """How many were recorded."""
        return len(self.known)

    @property
    def workers(self) -> int:
        """How many there are."""
        return len(self.recording.workers)

    def bounds(self) -> Bounds:
        """Those of the replayed job: the usual global batch, each worker free."""
        usual = np.nanmedian(self.samples) * self.workers
        scale = max(1, int(np.ceil(FINEST * self.workers / usual)))
        total = int(usual) * scale
        return Bounds(total, np.ones(self.workers, np.int64), np.full(self.workers, total))

    def scale(self, bounds: Bounds) -> float:
        """Samples of the replay for one of the recording."""
        return bounds.global_batch / (float(np.nanmedian(self.samples)) * self.workers)


def fixed_costs(samples: Array, own_time_s: Array) -> Array:
    """What a batch costs each worker beside its samples, in samples, told from the whole recording; (workers,)."""
    fit = CurveFit(samples.shape[1], float(np.nanmean(samples)))
    for iteration, (sizes, times_s) in enumerate(zip(samples, own_time_s, strict=True)):
        fit.learn(iteration, sizes, times_s)
    return fit.theta_samples


def held(values: Array) -> Array:
    """Gaps filled with the value before them, or, at the start, the first one; by column."""
    rows = np.arange(len(values))[:, None]
    known = np.isfinite(values)
    before = np.maximum.accumulate(np.where(known, rows, -1), axis=0)
    filled = np.take_along_axis(values, np.where(before < 0, known.argmax(0), before), axis=0)
    return np.where(np.isfinite(filled), filled, np.nanmedian(values))


def clock(world: World, bounds: Bounds) -> "Clock":
    """By the recording's clock where it has one."""
    return (WallClock if world.recording.timed else Clock)(world, bounds)


class Clock:
    """The moments that a simulated job lives through; each iteration is told its sizes and tells the times."""

    def __init__(self, world: World, bounds: Bounds) -> None:
        self._world = world
        self._scale = world.scale(bounds)
        self._place = 0

    def over(self) -> bool:
        """Whether the recording ends here."""
        return self._place >= self._world.iterations

    def progress(self) -> float:
        """Share of the recording that has passed."""
        return self._place / self._world.iterations

    def curves(self) -> Curves:
        """What the coming iteration would take each worker, as nobody could know."""
        world, speed = self._world, self._world.speed[self._place]
        return Curves(np.zeros(world.workers), world.fixed / speed, 1.0 / (speed * self._scale))

    def run(self, sizes: IntArray) -> tuple[Array, Array, Mask]:
        """One iteration: own times, sensors sent with the reports, and which workers report at all."""
        place, self._place = self._place, self._place + 1
        time_s = (self._world.fixed + sizes / self._scale) / self._world.speed[place]
        return time_s, self._world.sent[place], self._world.known[place]


class WallClock(Clock):
    """The same by the recording's clock: speeds change while an iteration runs."""

    def __init__(self, world: World, bounds: Bounds) -> None:
        super().__init__(world, bounds)
        start_s = held(world.start_s)
        self._starts_s = np.maximum.accumulate(start_s, axis=0)
        self._begin_s = float(start_s[0].max())
        self._end_s = float((start_s[-1] + held(world.own_time_s)[-1]).min())
        self._now_s = self._begin_s
        lasted_s = np.diff(self._starts_s, axis=0)
        self._done = np.concatenate((np.zeros((1, world.workers)), np.cumsum(lasted_s * world.speed[:-1], axis=0)))

    def over(self) -> bool:
        """Whether the recording ends here."""
        return self._now_s >= self._end_s

    def progress(self) -> float:
        """Share of the recording that has passed."""
        return min((self._now_s - self._begin_s) / max(self._end_s - self._begin_s, 1e-9), 1.0)

    def curves(self) -> Curves:
        """Straight lines near the sizes that end together; found by how much each would do by then."""
        world = self._world
        usual = self._together()
        time_s = self._times(usual)
        slope_s = time_s / (world.fixed + usual) / self._scale
        return Curves(np.zeros(world.workers), slope_s * world.fixed * self._scale, slope_s)

    def _together(self) -> Array:
        total = float(np.nanmedian(self._world.samples)) * self._world.workers
        low_s, high_s = 0.0, float(self._times(np.full(self._world.workers, total)).max())
        for _ in range(40):
            middle_s = (low_s + high_s) / 2
            enough = self._samples_by(middle_s).sum() >= total
            low_s, high_s = (low_s, middle_s) if enough else (middle_s, high_s)
        return self._samples_by(high_s)

    def _samples_by(self, time_s: float) -> Array:
        done = self._work_at(self._now_s + time_s) - self._work_at(self._now_s)
        return np.maximum(done - self._world.fixed, 0.0)

    def _work_at(self, moment_s: float) -> Array:
        row = self._row(moment_s)
        columns = np.arange(self._world.workers)
        return self._done[row, columns] + (moment_s - self._starts_s[row, columns]) * self._world.speed[row, columns]

    def _row(self, moment_s: float) -> IntArray:
        """The recorded iteration of each worker at that moment."""
        return np.asarray(np.maximum((self._starts_s <= moment_s).sum(0) - 1, 0))

    def _times(self, samples: Array) -> Array:
        goal = self._work_at(self._now_s) + self._world.fixed + samples
        row = np.maximum((self._done <= goal).sum(0) - 1, 0)
        columns = np.arange(self._world.workers)
        over_s = (goal - self._done[row, columns]) / self._world.speed[row, columns]
        return np.asarray(self._starts_s[row, columns] + over_s - self._now_s)

    def run(self, sizes: IntArray) -> tuple[Array, Array, Mask]:
        """One iteration; a worker in a gap of the recording does not report."""
        time_s = self._times(sizes / self._scale)
        self._now_s += float(time_s.max())
        row, columns = self._row(self._now_s), np.arange(self._world.workers)
        return time_s, self._world.at_start[row, columns], self._world.known[row, columns]
