"""Linear model with sensors: recursive least squares with forgetting, one model a worker, all in one array.

Forecasts log speed from past speeds and the newest sensors: what narx sees, without its hidden layer. Horizons
above 1 feed forecasts back with the sensors held. Recursion as in Ljung, System Identification, section 11.2;
the covariance's trace stays within its start, or inputs that rest for long would make it nervous.
"""

import numpy as np

from lbbsp.predictors.base import Array, Base
from lbbsp.predictors.inputs import History, Inputs, compressed

LAGS = 2
MEMORIES = (0.2, 0.02)
MOST = 6.0
"""Targets and forecasts lie within so many usual steps of log speed."""


class Arx(Base):
    """forgetting: what an observation still counts one iteration later; prior: how firmly weights start at 0."""

    name = "arx"

    def __init__(
        self, workers: int, sensors: int = 0, *, horizon: int = 1, forgetting: float = 0.99, prior: float = 3.0
    ) -> None:
        super().__init__(workers, sensors, horizon=horizon)
        self.forgetting = forgetting
        self._inputs = Inputs(workers, sensors, LAGS, MEMORIES)
        width = self._inputs.width + 1
        self._weights: Array = np.zeros((workers, width))
        self._covariance: Array = np.tile(np.eye(width) / prior, (workers, 1, 1))
        self._most_trace = width / prior
        self._rows: Array | None = None

    def skip(self) -> None:
        """See Base: weights stay."""
        super().skip()
        self._inputs.skip()
        self._rows = None

    def _learn(self, speed: Array, sensors: Array) -> None:
        log_speed = np.log(speed)
        if self._rows is not None:
            change = (log_speed - self._inputs.history.steady) / self._inputs.step
            self._update(self._rows, np.clip(change, -MOST, MOST))
        readings = compressed(sensors)
        self._inputs.learn(log_speed, readings)
        self._rows = self._seen(self._inputs.history, readings)

    def _update(self, rows: Array, target: Array) -> None:
        known = np.isfinite(target)
        spread = np.einsum("wij,wj->wi", self._covariance, rows)
        gain = (known / (self.forgetting + np.einsum("wi,wi->w", rows, spread)))[:, None] * spread
        missed = np.where(known, target - np.einsum("wi,wi->w", rows, self._weights), 0.0)
        self._weights += gain * missed[:, None]
        self._covariance -= gain[:, :, None] * spread[:, None, :]
        grown = np.minimum(1.0 / self.forgetting, self._most_trace / np.einsum("wii->w", self._covariance))
        self._covariance *= np.where(known, grown, 1.0)[:, None, None]

    def _seen(self, history: History, readings: Array) -> Array:
        rows = self._inputs.rows(history, readings)
        return np.concatenate((rows, np.ones((self.workers, 1))), axis=1)

    def _forecast(self, sensors: Array, horizon: int) -> Array:
        inputs, history, readings = self._inputs, self._inputs.history, compressed(sensors)
        for _ in range(horizon):
            change = np.einsum("wi,wi->w", self._seen(history, readings), self._weights)
            following = history.steady + inputs.step * np.clip(change, -MOST, MOST)
            history = history.after(np.clip(following, inputs.slowest, inputs.fastest))
        return np.exp(history.newest)
