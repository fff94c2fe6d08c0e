"""Own time against samples, fitted online for every rank: its fixed cost, counted in samples.

t(x) = (theta + x) / v: theta is what a batch costs beside its samples (launches, gloo's threads, the optimizer), v
the speed of the moment. Sizes follow speed, so a regression of time on size would find no slope at all: at
equilibrium all times are alike whatever the sizes. What tells is the step from one iteration to the next, where the
size changed more than noise explains while the speed is nearly the same: t'/t = (theta + x') / (theta + x).
Knows nothing of plans. Times in seconds, sizes in samples, speeds in samples/s at the reference size.
"""

from typing import Self

import numpy as np
import numpy.typing as npt

from lbbsp.core.sizing import Curves

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_ELASTICITY = np.linspace(1.0, 0.1, 19)
"""Candidates: relative change of time over relative change of size, at the reference size; 1 = no fixed cost."""
_THETA = 1.0 / _ELASTICITY - 1.0
"""The same as fixed cost in reference sizes."""
_LOG_PRIOR = -10.0 * (1.0 - _ELASTICITY)
"""No fixed cost is likelier; too small a theta makes sizes converge slowly, too large a one makes them swing. It takes
several steps to overrule this: a neighbour that comes as the size first changes looks like a fixed cost of any size."""
_FORGET = 0.98
"""What earlier steps still count after one more step that tells something."""
_NOISE = 0.15
"""Relative change of speed between two iterations, before any is known; counts as much as _NOISE_COUNT of them."""
_NOISE_COUNT = 5.0
_LEAST_NOISE = 0.01
_NOISE_SHARE = 0.05
_OUTLIER = 4.0
"""The noise learns from no change beyond so many times itself: a neighbour came or went, or a burst."""
_MOST_SAID = 2.0
"""A step's residual counts for no more than so many times the noise, for the same reason."""
_TELLING = 2.0
"""A step tells something where the size changed by more than so many times the noise."""
_FRESH = 4
"""Two reports are of the same moment when at most so many iterations lie between them."""


class CurveFit:
    """Fixed costs of all ranks as arrays; learns from each iteration's sizes and own times.

    Args:
        ranks: how many.
        reference_samples: the size at which speeds are told, X / world size: there, a change of the fit
            leaves speeds told earlier as they were.
    """

    def __init__(self, ranks: int, reference_samples: float) -> None:
        self.reference_samples = reference_samples
        self.theta_samples: Array = np.zeros(ranks)
        """Fixed cost of each rank in samples; 0 while it has shown one size only."""
        self._unit_samples: Array = np.full(ranks, float(reference_samples))
        self._misfit: Array = np.zeros((ranks, len(_THETA)))
        self._noise: Array = np.full(ranks, _NOISE)
        self._pairs: Array = np.zeros(ranks)
        self._samples: Array = np.full(ranks, np.nan)
        self._time_s: Array = np.full(ranks, np.nan)
        self._iteration = np.full(ranks, -1, dtype=np.int64)

    def learn(self, iteration: int, samples: Array, time_s: Array) -> None:
        """Learn from one iteration, (ranks,) each; NaN where a rank has no sound report of it."""
        known = np.isfinite(samples) & np.isfinite(time_s) & (samples > 0)
        pairs = known & (self._iteration >= 0) & (iteration - self._iteration <= _FRESH)
        if pairs.any():
            self._learn_pairs(np.flatnonzero(pairs), samples, time_s)
        self._samples = np.where(known, samples, self._samples)
        self._time_s = np.where(known, time_s, self._time_s)
        self._iteration = np.where(known, iteration, self._iteration)

    def _learn_pairs(self, ranks: npt.NDArray[np.intp], samples: Array, time_s: Array) -> None:
        before, after, theta = self._samples[ranks], samples[ranks], self.theta_samples[ranks]
        noise = self._noise[ranks]
        time_change = np.log(time_s[ranks] / self._time_s[ranks])
        unexplained = np.abs(time_change - np.log((theta + after) / (theta + before)))
        step = np.abs(np.log(after / before)) > _TELLING * noise
        if step.any():
            self._learn_steps(ranks[step], before[step], after[step], time_change[step])
        usual = np.clip(unexplained, _LEAST_NOISE, _OUTLIER * noise)
        self._pairs[ranks] += 1.0
        share = np.maximum(_NOISE_SHARE, 1.0 / (self._pairs[ranks] + _NOISE_COUNT))
        self._noise[ranks] = noise + share * (usual - noise)

    def _learn_steps(self, ranks: npt.NDArray[np.intp], before: Array, after: Array, time_change: Array) -> None:
        theta = self._unit_samples[ranks, None] * _THETA
        expected = np.log((theta + after[:, None]) / (theta + before[:, None]))
        residual = (time_change[:, None] - expected) / self._noise[ranks, None]
        misfit = _FORGET * self._misfit[ranks] + np.minimum(residual**2, _MOST_SAID**2) / 2
        self._misfit[ranks] = misfit
        weight = np.exp(_LOG_PRIOR - misfit + misfit.min(axis=1, keepdims=True))
        elasticity = weight @ _ELASTICITY / weight.sum(axis=1)
        self.theta_samples[ranks] = self._unit_samples[ranks] * (1.0 / elasticity - 1.0)

    def rescaled_s(self, time_s: Array, samples: Array, other_samples: Array | IntArray) -> Array:
        """What own times would have been at other sizes in the same iteration."""
        theta = self.theta_samples
        with np.errstate(divide="ignore", invalid="ignore"):
            return time_s * (theta + other_samples) / (theta + samples)

    def speed(self, samples: Array, time_s: Array) -> Array:
        """Samples/s that each rank would have shown at the reference size; NaN where unknown."""
        known = np.where(samples > 0, samples, np.nan)
        at_reference_s = self.rescaled_s(time_s, known, np.full(len(known), self.reference_samples))
        return self.reference_samples / at_reference_s

    def curves(self, speed: Array) -> Curves:
        """Time curves at these speeds, samples/s at the reference size."""
        slope_s = self.reference_samples / (speed * (self.theta_samples + self.reference_samples))
        return Curves(np.zeros(len(speed)), slope_s * self.theta_samples, slope_s)

    def inherit(self, ranks: npt.NDArray[np.intp], earlier: Self, earlier_ranks: npt.NDArray[np.intp]) -> None:
        """Take over the fit of the same devices from an earlier incarnation of the job."""
        for mine, theirs in (
            (self.theta_samples, earlier.theta_samples),
            (self._unit_samples, earlier._unit_samples),
            (self._misfit, earlier._misfit),
            (self._noise, earlier._noise),
            (self._pairs, earlier._pairs),
        ):
            mine[ranks] = theirs[earlier_ranks]
