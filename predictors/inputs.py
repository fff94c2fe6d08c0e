"""What arx and narx look at: past log speeds and sensors of each worker, on scales that all workers share.

Speeds enter as differences of logarithms, so their unit does not matter. Sensors are counts, shares and rates:
log1p tames them, then mean and spread over the whole job bring them near 1, so that one reading means the same
on every worker. A sensor that is missing reads as its mean, 0. Pure array work over (workers,).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from lbbsp.predictors.base import Array, blend

CLIP = 6.0
"""Inputs beyond so many spreads say no more."""

BEST_RISE, BEST_FALL = 0.2, 0.005
"""How fast the estimate of a worker's undisturbed log speed follows better and worse iterations."""

PARTS = ("count", "mean", "variance")

BEYOND = 1.2
"""Differences are cut at so many times the largest seen before: there a model would only extrapolate."""


@dataclass(frozen=True)
class History:
    """Log speeds so far, (workers,) each: the newest ones, running means, and the undisturbed speed (best)."""

    past: Array
    means: Array
    best: Array
    count: Array
    shares: tuple[float, ...]

    @classmethod
    def empty(cls, workers: int, lags: int, shares: tuple[float, ...]) -> "History":
        """No iteration seen yet. shares: how much the newest counts in each running mean."""
        unknown = np.full(workers, np.nan)
        past, means = np.full((max(lags + 1, 3), workers), np.nan), np.full((len(shares), workers), np.nan)
        return cls(past, means, unknown, np.zeros(workers), shares)

    @property
    def newest(self) -> Array:
        """Log speed of the last report, (workers,)."""
        newest: Array = self.past[0]
        return newest

    @property
    def steady(self) -> Array:
        """Median of the last three log speeds, which no single spike moves, (workers,)."""
        first, second, third = blend(self.past[:3], self.newest, 0.0)
        low, high = np.minimum(first, second), np.maximum(first, second)
        steady: Array = np.maximum(low, np.minimum(high, third))
        return steady

    def after(self, log_speed: Array) -> "History":
        """The history one iteration later. A worker without a report (NaN) keeps its newest value."""
        newest = np.where(np.isnan(log_speed), self.newest, log_speed)
        count = self.count + np.isfinite(log_speed)
        share = np.maximum(np.array(self.shares)[:, None], 1.0 / np.maximum(count, 1.0))
        past = np.concatenate((newest[None], self.past[:-1]))
        means = blend(self.means, log_speed, share)
        return replace(self, past=past, means=means, best=self._best_after(log_speed), count=count)

    def _best_after(self, log_speed: Array) -> Array:
        return blend(self.best, log_speed, np.where(log_speed > self.best, BEST_RISE, BEST_FALL))

    def gaps(self) -> Array:
        """How far past, means and best lie above the steady log speed, (lags + 1 + means + 1, workers)."""
        gaps: Array = np.concatenate((self.past, self.means, self.best[None])) - self.steady
        return np.nan_to_num(gaps)


class Spread:
    """Running mean and spread of each column over all workers; the newest iteration counts for `share`."""

    def __init__(self, columns: int, share: float = 1 / 300) -> None:
        self.share = share
        self.count: Array = np.zeros(columns)
        self.mean: Array = np.zeros(columns)
        self.variance: Array = np.zeros(columns)

    def learn(self, values: Array) -> None:
        """Take in (workers, columns); NaN counts for nothing."""
        known = np.isfinite(values)
        number = known.sum(0)
        away = np.where(known, values - self.mean, 0.0)
        self.count += number > 0
        share = np.where(number > 0, np.maximum(self.share, 1.0 / np.maximum(self.count, 1.0)), 0.0)
        move = away.sum(0) / np.maximum(number, 1)
        squares = np.einsum("wc,wc->c", away, away) / np.maximum(number, 1)
        variance = self.variance + share * (squares - share * move**2 - self.variance)
        self.variance = np.maximum(variance, 0.0)  # rounding may leave less where all readings are alike
        self.mean += share * move

    def scaled(self, values: Array) -> Array:
        """Values in spreads from the mean, within CLIP; 0 where unknown."""
        spread = np.sqrt(self.variance) + 1e-3 * np.abs(self.mean) + 1e-9
        scaled: Array = np.clip(np.nan_to_num((values - self.mean) / spread), -CLIP, CLIP)
        return scaled


class Inputs:
    """History and scales of all workers; `rows` gives what a model sees of each, (workers, width).

    slowest and fastest are the range of log speeds that each worker has shown.
    """

    def __init__(self, workers: int, sensors: int, lags: int, shares: tuple[float, ...]) -> None:
        self.history = History.empty(workers, lags, shares)
        self._gaps: Array = self.history.gaps()
        self._largest: Array = np.zeros(len(self._gaps))
        self.width = len(self._largest) + sensors
        self.slowest: Array = np.full(workers, np.nan)
        self.fastest: Array = np.full(workers, np.nan)
        self._readings = Spread(sensors)
        self._changes = Spread(1)

    @property
    def step(self) -> float:
        """Usual change of log speed from one iteration to the next (root mean square over the job)."""
        usual = float(np.sqrt(self._changes.variance[0] + self._changes.mean[0] ** 2))
        return max(usual, 1e-4)

    def learn(self, log_speed: Array, readings: Array) -> None:
        """Take in one finished iteration: log speeds (workers,), compressed sensors (workers, sensors)."""
        self.slowest = np.fmin(self.slowest, log_speed)
        self.fastest = np.fmax(self.fastest, log_speed)
        self._changes.learn((log_speed - self.history.newest)[:, None])
        self._largest = np.maximum(self._largest, np.maximum(self._gaps.max(1), -self._gaps.min(1)))
        self._readings.learn(readings)
        self.history = self.history.after(log_speed)
        self._gaps = self.history.gaps()

    def skip(self) -> None:
        """Iterations went by unseen: the history begins anew; scales, and the speeds that were shown, stay."""
        history = self.history
        self.history = History.empty(len(history.count), len(history.past) - 1, history.shares)
        self._gaps = self.history.gaps()

    def scales(self) -> dict[str, Array]:
        """What all workers share, by name: of each sensor and of changes of log speed; the largest gaps seen."""
        spreads = {"sensors": self._readings, "changes": self._changes}
        told = {f"{name}_{part}": getattr(spread, part).copy() for name, spread in spreads.items() for part in PARTS}
        return told | {"largest_gaps": self._largest.copy()}

    def start_from(self, scales: Mapping[str, Array]) -> None:
        """Take over scales that `scales` told for as many sensors."""
        for name, spread in {"sensors": self._readings, "changes": self._changes}.items():
            for part in PARTS:
                setattr(spread, part, scales[f"{name}_{part}"].copy())
        self._largest = scales["largest_gaps"].copy()

    def rows(self, history: History, readings: Array) -> Array:
        """Inputs of each worker after that history and with these compressed sensors, (workers, width)."""
        most = np.minimum(BEYOND * self._largest, CLIP * self.step)
        gaps = self._gaps if history is self.history else history.gaps()
        near = np.clip(gaps.T, -most, most) / self.step
        return np.concatenate((near, self._readings.scaled(readings)), axis=1)


def compressed(sensors: Array) -> Array:
    """Readings on a logarithmic scale that keeps sign and zero; infinite ones count as missing."""
    small: Array = np.copysign(np.log1p(np.abs(sensors)), sensors)
    return np.where(np.isfinite(small), small, np.nan)
