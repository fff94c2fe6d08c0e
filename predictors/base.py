"""What a predictor is, and what all of them share: a worker without a report, and their own error.

A predictor forecasts the relative speed of every worker of a job at once, in samples/s. It knows nothing of
clocks, files, threads or sizes. Order of calls, once an iteration: `observe` with the speeds of the iteration
that ended and the sensors sent with its reports, then `predict` with the same sensors for what is to come.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lbbsp.errors import ConfigError

Array = npt.NDArray[np.float64]
"""Speeds are (workers,), sensors (workers, sensors); NaN = no report, no such sensor."""

IntArray = npt.NDArray[np.intp]

ERROR_MEMORY = 0.05
"""Share of the newest iteration in the recent error: about the last 20 count."""


class Predictor(Protocol):
    """Forecast the speed of each worker. Arrays are (workers,) and (workers, sensors); NaN = no report."""

    workers: int
    sensors: int

    def __init__(self, workers: int, sensors: int = 0, **options: Any) -> None: ...

    def observe(self, speed: Array, sensors: Array) -> None:
        """Learn from one finished iteration: its speeds in samples/s, the sensors read at its end."""

    def predict(self, sensors: Array, horizon: int = 1) -> Array:
        """Speed `horizon` iterations after the newest observed one, finite and > 0. Changes nothing."""

    def train(self, more: Callable[[], bool]) -> None:
        """Spend spare time off the decision path, in steps of about a millisecond, while more() is true."""

    def error(self) -> Array:
        """Own recent error at its usual horizon, root mean square, as a share of the speed; NaN before any."""

    def in_charge(self) -> tuple[str, ...]:
        """Name of what forecasts each worker now."""


class Base:
    """Keeps the recent error and lets no unusable speed through, in or out.

    A predictor derives from it, names itself and writes `_learn` and `_forecast`. `_learn` sees NaN where a
    speed was missing, zero, negative or infinite. `_forecast` may return NaN for a worker it can't tell: the
    median of the others, or 1, steps in.
    """

    name = "base"
    reads_sensors = True
    """Whether the forecast needs the sensors of each iteration; an instance may say False for a while."""

    def __init__(self, workers: int, sensors: int = 0, *, horizon: int = 1) -> None:
        if horizon < 1:
            raise ConfigError(f"horizon {horizon} is no iteration ahead: 1 is the next one")
        self.workers = workers
        self.sensors = sensors
        self.horizon = horizon
        self._ahead: deque[Array] = deque(maxlen=horizon)
        self._newest_sensors: Array = np.full((workers, sensors), np.nan)
        self._square_error: Array = np.full(workers, np.nan)

    def _learn(self, speed: Array, sensors: Array) -> None:
        raise NotImplementedError

    def _forecast(self, sensors: Array, horizon: int) -> Array:
        raise NotImplementedError

    def observe(self, speed: Array, sensors: Array) -> None:
        """Score the forecast made for this iteration, then learn from it. ValueError on a wrong shape."""
        speed, sensors = usable(self._shaped(speed, (self.workers,))), self._shaped_sensors(sensors)
        if len(self._ahead) == self.horizon:
            wrong = (self._ahead[0] / speed - 1.0) ** 2
            self._square_error = blend(self._square_error, wrong, ERROR_MEMORY)
        self._learn(speed, sensors)
        self._ahead.append(self._forecast(sensors, self.horizon))
        self._newest_sensors = sensors

    def predict(self, sensors: Array, horizon: int = 1) -> Array:
        """Speed `horizon` iterations ahead, (workers,) in samples/s, finite and > 0. Changes nothing.

        What was asked for when observing, at the usual horizon and with the same sensors, is not worked out again.
        """
        if horizon < 1:
            raise ConfigError(f"horizon {horizon} is no iteration ahead: 1 is the next one")
        sensors = self._shaped_sensors(sensors)
        if self._ahead and horizon == self.horizon and same(sensors, self._newest_sensors):
            return filled(self._ahead[-1].copy())
        return filled(self._forecast(sensors, horizon))

    def expect_mean_of(self, iterations: int) -> None:
        """What is observed next is the mean of so many iterations: the job rests. Of no matter to most predictors."""

    def skip(self) -> None:
        """Iterations went by that it was not told of: what it has learnt stays, the newest past is none."""
        self._ahead.clear()

    def train(self, more: Callable[[], bool]) -> None:
        """Nothing to train, unless a predictor says otherwise."""

    def error(self) -> Array:
        """Recent root mean square error at the usual horizon, as a share of the speed, (workers,)."""
        return np.sqrt(self._square_error)

    def in_charge(self) -> tuple[str, ...]:
        """Name of what forecasts each worker."""
        return (self.name,) * self.workers

    def _shaped_sensors(self, sensors: Array) -> Array:
        return self._shaped(sensors, (self.workers, self.sensors))

    def _shaped(self, values: Array, shape: tuple[int, ...]) -> Array:
        array = np.array(values, dtype=np.float64)
        if array.shape != shape:
            raise ValueError(f"{self.name} wants an array of shape {shape}, got {array.shape}")
        return array


def same(some: Array, other: Array) -> bool:
    """Whether two arrays of one shape hold the same values, NaN like NaN."""
    return bool(((some == other) | (np.isnan(some) & np.isnan(other))).all())


def usable(speed: Array) -> Array:
    """Speeds, with NaN in place of what can't be one (zero, negative, infinite)."""
    return np.where(np.isfinite(speed) & (speed > 0), speed, np.nan)


def blend(old: Array, new: Array, share: float | Array) -> Array:
    """Old + share (new - old); where one of both is NaN, the other."""
    mixed = old + share * (new - old)
    return np.where(np.isnan(mixed), np.where(np.isnan(old), new, old), mixed)


def filled(speed: Array) -> Array:
    """Speeds that can be used: where one is unknown, the median of the known ones, or 1."""
    good = np.isfinite(speed) & (speed > 0)
    if good.all():
        return speed
    return np.where(good, speed, np.median(speed[good]) if good.any() else 1.0)
