"""Keeps forecasts still where a rank only jitters: sizes that follow noise gain nothing and cost a change.

For each rank a running mean of its forecasts, restarted at once by a jump that its forecast errors don't explain.
The mean is used while it forecasts at least as well as the forecast itself. Knows nothing of sizes or predictors.
"""

from collections import deque

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_USUAL_ERROR = 0.05
"""Before any is known; counts as much as two errors."""
_ERROR_SHARE = 0.04
"""Of the newest error in the usual error: about the last 25 iterations count."""
_LEAST_ERROR = 0.01
_OUTLIER = 4.0
_SLOWEST = 0.02
"""Least share of the newest forecast in the mean."""
_FAVOUR = 1.05
"""The mean may err so much more than the forecast and still be used."""


class Calm:
    """All ranks of a job as arrays. Speeds in any unit; errors are differences of logarithms."""

    def __init__(self, ranks: int, horizon: int) -> None:
        self.usual_error: Array = np.full(ranks, _USUAL_ERROR)
        """Recent mean error of the forecasts at the horizon, as a share of the speed."""
        self.errors: Array = np.zeros(ranks)
        """How many errors are known."""
        self._mean_error: Array = np.full(ranks, _USUAL_ERROR)
        self._mean: Array = np.full(ranks, np.nan)
        self._count: Array = np.zeros(ranks)
        self._extreme = float(np.sqrt(2.0 * np.log(max(ranks, 2))))
        """How many standard deviations the largest of so many deviations is worth."""
        self.doubt = 0.0
        """Share of an iteration's time that noise alone can make a new plan look better by."""
        self._made: deque[tuple[Array, Array]] = deque(maxlen=horizon)

    def settle(self, forecast: Array, speed: Array, iterations: int = 1) -> Array:
        """Forecasts to plan with, (ranks,), from new ones and the speeds of the iteration just over (NaN: none).

        With `iterations`, speeds are those of the last so many, in which no forecast was made.
        """
        if self._made:
            self._made.extend([self._made[-1]] * (iterations - 1))
        with np.errstate(invalid="ignore"):
            self._score(np.log(speed))
        log_forecast = np.log(forecast)
        self._follow(log_forecast, np.isfinite(speed))
        self._made.append((log_forecast, self._mean.copy()))
        jitters = self._mean_error <= _FAVOUR * self.usual_error
        share = self._share()
        noise = np.where(jitters, self.usual_error * np.sqrt(share / (2.0 - share)), 0.0)
        middle = len(noise) // 2
        self.doubt = self._extreme * float(np.partition(noise, middle)[middle])
        return np.asarray(np.where(jitters, np.exp(self._mean), forecast))

    def _score(self, log_speed: Array) -> None:
        if len(self._made) < (self._made.maxlen or 1):
            return
        forecast, mean = self._made[0]
        known = np.isfinite(log_speed)
        self.errors += known
        share = known * np.maximum(_ERROR_SHARE, 1.0 / (self.errors + 2.0))
        most = _OUTLIER * np.maximum(self.usual_error, _LEAST_ERROR)
        for usual, forecasts in ((self.usual_error, forecast), (self._mean_error, mean)):
            error = np.where(known, np.abs(log_speed - forecasts), 0.0)
            usual += share * (np.minimum(error, most) - usual)

    def _follow(self, log_forecast: Array, heard: npt.NDArray[np.bool_]) -> None:
        change = log_forecast - self._mean
        jump = 2.0 + 0.5 * self._extreme
        kept = np.abs(change) <= jump * np.maximum(self.usual_error, _LEAST_ERROR)
        self._count = np.where(kept, self._count + heard, 0.0)
        self._mean = np.where(kept, self._mean + self._share() * change, log_forecast)

    def _share(self) -> Array:
        """Of the newest forecast in the mean: all of it at first, so that what a jump passes through is forgotten."""
        return np.clip(4.0 / (self._count + 1.0), _SLOWEST, 1.0)
