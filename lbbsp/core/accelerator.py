"""Own time against samples on accelerators, max(flat, offset + slope x), fitted online for every rank.

In logarithms a time is level + shape + noise. The shape is one of a grid: a fixed cost theta and a knee, in reference
sizes, below which more samples cost nothing. For each shape the level follows the newest times; each new time judges
the shapes by what they had expected of it (a Bayesian grid, one step an iteration). A jump of the level is told from
noise and changes no shape; the level before it is kept, since neighbours leave and bursts end.
Knows nothing of plans. Arrays are (ranks,) or (ranks, shapes); sizes in samples, times in seconds.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lbbsp.core.bounds import IntArray

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_SHARES = np.array([0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.75, 0.9])
"""Candidates: share of the fixed cost in the time at the reference size."""
_KNEES = np.array([0.0, 0.06, 0.12, 0.18, 0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0])
"""Candidates: knee in reference sizes."""
_PRIOR_SHARE = 3.0
_PRIOR_KNEE = 1.5
"""Small fixed costs and small knees are likelier."""
_FORGET_SHAPE = 0.998
_FORGET_LEVEL = 0.98
_NOISE = 0.05
"""Sigma of log time, until it is known."""
_LEAST_NOISE = 0.005
_NOISE_SHARE = 0.04
_OUTLIER = 3.0
"""A residual counts for no more than so many times the noise."""
_JUMP = 4.0
"""Beyond so many times the noise the level has jumped ..."""
_RETURN = 2.5
"""... and is back at the one before within so many."""
_FAR = 100.0
"""A shape that was not in the grid of an earlier reference size is less likely by this times its distance squared."""
_FLEETING = 0.25
"""Share of the newest jump in what is known of how long jumps last."""


class AcceleratorFit:
    """Time curves of all ranks as arrays.

    Args:
        ranks: how many.
        reference_samples: X / world size; the grid of shapes is in units of it.
    """

    def __init__(self, ranks: int, reference_samples: float) -> None:
        share, knee = (grid.ravel() for grid in np.meshgrid(_SHARES, _KNEES, indexing="ij"))
        self.reference_samples = float(reference_samples)
        self._theta: Array = share / (1.0 - share)
        self._knee: Array = knee
        self._log_odds: Array = np.tile(-_PRIOR_SHARE * share - _PRIOR_KNEE * knee, (ranks, 1))
        self._level: Array = np.full((ranks, len(share)), np.nan)
        self._count: Array = np.zeros(ranks)
        self._earlier_level: Array = np.full((ranks, len(share)), np.nan)
        self._earlier_count: Array = np.zeros(ranks)
        self._noise: Array = np.full(ranks, _NOISE)
        self._fleeting: Array = np.zeros(ranks)
        self._jumped: Mask = np.zeros(ranks, dtype=np.bool_)
        self._waits: Mask = np.zeros(ranks, dtype=np.bool_)

    @property
    def seen(self) -> Mask:
        """Which ranks have shown a time."""
        return self._count > 0

    @property
    def noise(self) -> Array:
        """Sigma of the logarithm of a time, (ranks,)."""
        return self._noise

    def learn(self, samples: Array, time_s: Array) -> None:
        """Learn from one iteration; NaN where a rank has no sound report of it."""
        known = np.flatnonzero(np.isfinite(samples) & np.isfinite(time_s) & (samples > 0) & (time_s > 0))
        if not len(known):
            return
        residual = np.log(time_s[known])[:, None] - self._log_shape(samples[known])
        fresh = self._count[known] == 0
        self._start(known[fresh], residual[fresh])
        self._continue(known[~fresh], residual[~fresh])

    def curves(self, ranks: IntArray | None = None) -> "KneeCurves":
        """The expected time curves: the mean over shapes; ranks never seen get the median of the others."""
        weight = self._weights() * np.exp(np.where(np.isfinite(self._level), self._level, 0.0))
        nodes = _KNEES * self.reference_samples
        floor = np.maximum(_KNEES[:, None], self._knee) + self._theta
        times = weight @ floor.T
        slope = weight.sum(axis=1) / self.reference_samples
        if not self.seen.all() and self.seen.any():
            times[~self.seen], slope[~self.seen] = np.median(times[self.seen], axis=0), np.median(slope[self.seen])
        curves = KneeCurves(nodes, times, slope)
        return curves if ranks is None else curves.take(ranks)

    def uncertainty(self, samples: Array) -> Array:
        """Sigma of the logarithm of the expected time at these sizes, (ranks,): where one more time teaches most."""
        weight = self._weights()
        log_time = np.where(np.isfinite(self._level), self._level, 0.0) + self._log_shape(samples)
        mean = (weight * log_time).sum(axis=1)
        spread = (weight * (log_time - mean[:, None]) ** 2).sum(axis=1)
        return np.asarray(np.sqrt(spread + self._noise**2 / np.maximum(self._count, 0.25)))

    def inherit(
        self, ranks: npt.NDArray[np.intp], earlier: "AcceleratorFit", earlier_ranks: npt.NDArray[np.intp]
    ) -> None:
        """Take over the shapes of the same devices; where the reference size is another, to the grid's precision."""
        if not len(ranks):
            return
        scale = earlier.reference_samples / self.reference_samples
        same, far = self._nearest(self._theta / scale, self._knee / scale)
        self._log_odds[ranks] = earlier._log_odds[earlier_ranks][:, same] - _FAR * far
        self._noise[ranks] = earlier._noise[earlier_ranks]
        self._level[ranks] = earlier._level[earlier_ranks][:, same] - np.log(scale)
        self._count[ranks] = np.minimum(earlier._count[earlier_ranks], 1.0)

    def _nearest(self, theta: Array, knee: Array) -> tuple[IntArray, Array]:
        """The shape of the grid that is nearest to each of these, and how far it is, squared."""
        share, wanted = self._theta / (1.0 + self._theta), theta / (1.0 + theta)
        far = (share - wanted[:, None]) ** 2 + (np.log1p(self._knee) - np.log1p(knee)[:, None]) ** 2
        return np.asarray(far.argmin(axis=1), dtype=np.int64), np.asarray(far.min(axis=1))

    def _log_shape(self, samples: Array) -> Array:
        units = samples[:, None] / self.reference_samples
        return np.asarray(np.log(np.maximum(np.maximum(units, self._knee) + self._theta, 1e-12)))

    def _weights(self) -> Array:
        odds = np.exp(self._log_odds - self._log_odds.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))

    def _start(self, ranks: IntArray, residual: Array) -> None:
        self._level[ranks], self._count[ranks] = residual, 1.0

    def _continue(self, ranks: IntArray, residual: Array) -> None:
        if not len(ranks):
            return
        surprise = self._surprise(ranks, residual, self._level, self._count)
        far = np.abs(surprise) > _JUMP
        back = np.abs(self._surprise(ranks, residual, self._earlier_level, self._earlier_count)) < _RETURN
        waits = far & ~back & (self._fleeting[ranks] > 0.5) & ~self._waits[ranks]
        self._waits[ranks] = waits
        self._bounce(ranks[far & back])
        self._jump(ranks[far & ~back & ~waits], residual[far & ~back & ~waits])
        follows = ~far | (far & back)
        self._follow(ranks[follows], residual[follows])
        self._jumped[ranks] = far & ~waits

    def _surprise(self, ranks: IntArray, residual: Array, level: Array, count: Array) -> Array:
        """How far the new time lies from the expected one, in sigmas; infinite where there is no level."""
        known = count[ranks] > 0
        error = (self._weights()[ranks] * (residual - np.where(known[:, None], level[ranks], 0.0))).sum(axis=1)
        spread = self._spread(ranks, residual, level) + self._noise[ranks] ** 2 * (
            1.0 + 1.0 / np.maximum(count[ranks], 1)
        )
        return np.where(known, error / np.sqrt(spread), np.inf)

    def _spread(self, ranks: IntArray, residual: Array, level: Array) -> Array:
        """Variance over shapes of the expected log time."""
        weight = self._weights()[ranks]
        error = np.where(np.isfinite(level[ranks]), residual - level[ranks], 0.0)
        mean = (weight * error).sum(axis=1, keepdims=True)
        return np.asarray((weight * (error - mean) ** 2).sum(axis=1))

    def _bounce(self, ranks: IntArray) -> None:
        """Back at the level before: what was learnt of it counts again."""
        self._fleeting[ranks] += _FLEETING * (self._jumped[ranks] - self._fleeting[ranks])
        for one, other in ((self._level, self._earlier_level), (self._count, self._earlier_count)):
            one[ranks], other[ranks] = other[ranks].copy(), one[ranks].copy()

    def _jump(self, ranks: IntArray, residual: Array) -> None:
        self._fleeting[ranks] += _FLEETING * (0.0 - self._fleeting[ranks]) * ~self._jumped[ranks]
        self._earlier_level[ranks], self._earlier_count[ranks] = self._level[ranks], self._count[ranks]
        self._start(ranks, residual)

    def _follow(self, ranks: IntArray, residual: Array) -> None:
        count, noise = self._count[ranks], self._noise[ranks]
        error = residual - self._level[ranks]
        expected = (self._weights()[ranks] * error).sum(axis=1)
        doubt = 1.0 + 1.0 / count
        sigmas = error / (noise * np.sqrt(doubt))[:, None]
        self._log_odds[ranks] = _FORGET_SHAPE * self._log_odds[ranks] - np.minimum(sigmas**2, _OUTLIER**2) / 2
        self._log_odds[ranks] -= self._log_odds[ranks].max(axis=1, keepdims=True)
        most = (_OUTLIER * noise)[:, None]
        self._level[ranks] += np.clip(error, -most, most) / (count + 1.0)[:, None]
        self._count[ranks] = _FORGET_LEVEL * (count + 1.0)
        usual = np.minimum(np.abs(expected) / np.sqrt(doubt) * 1.25, _OUTLIER * noise)
        self._noise[ranks] = np.maximum(noise + _NOISE_SHARE * (usual - noise), _LEAST_NOISE)


@dataclass(frozen=True, eq=False)
class KneeCurves:
    """Non-decreasing piecewise linear time curves with common nodes, straight beyond the last."""

    nodes_samples: Array
    """(nodes,), rising from 0."""
    times_s: Array
    """(ranks, nodes)."""
    slope_s: Array
    """(ranks,), beyond the last node."""

    def time_s(self, samples: IntArray | Array) -> Array:
        """Own time of each rank at these sizes."""
        rows = np.arange(len(self.slope_s))
        place = np.clip(np.searchsorted(self.nodes_samples, samples, side="right") - 1, 0, len(self.nodes_samples) - 1)
        slopes = self._slopes()
        return np.asarray(
            self.times_s[rows, place] + (samples - self.nodes_samples[place]) * slopes[rows, place], dtype=np.float64
        )

    def most_within(self, time_s: float) -> Array:
        """Samples that each rank can do in a time; -1 where it can't do any."""
        rows = np.arange(len(self.slope_s))
        place = (self.times_s <= time_s).sum(axis=1) - 1
        start = np.maximum(place, 0)
        slope = self._slopes()[rows, start]
        with np.errstate(divide="ignore"):
            most = self.nodes_samples[start] + (time_s - self.times_s[rows, start]) / slope
        return np.where(place >= 0, most, -1.0)

    def take(self, ranks: IntArray) -> "KneeCurves":
        """The curves of some ranks only."""
        return KneeCurves(self.nodes_samples, self.times_s[ranks], self.slope_s[ranks])

    def no_plan_before_s(self, total_samples: int) -> float:
        """No cheap bound is known."""
        return 0.0

    def _slopes(self) -> Array:
        inner = np.diff(self.times_s, axis=1) / np.diff(self.nodes_samples)
        return np.concatenate([inner, self.slope_s[:, None]], axis=1)
