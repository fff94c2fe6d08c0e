"""A predictor that can't break the job: where it raises or forecasts nonsense, the last speed steps in.

Knows nothing of sizes. Arrays have one entry per rank; speeds in samples/s, NaN = no report.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from lbbsp.predictors import Predictor, make
from lbbsp.predictors.base import Base

Array = npt.NDArray[np.float64]
T = TypeVar("T")
log = logging.getLogger(__name__)

_WILDEST = 1e4
"""A forecast that differs more than this from the last speed is nonsense."""


class Forecaster:
    """Feeds a predictor and guards its forecasts.

    Args:
        name: of the predictor, as in its registry.
        ranks: of the job.
        sensors: readings of each rank.
        horizon: iterations from the newest report to the one that is forecast.
    """

    def __init__(self, name: str, ranks: int, sensors: int, horizon: int) -> None:
        self.name = name
        self.stepped_in = 0
        """Forecasts of single ranks, and of all of them at once, that the last speed replaced."""
        self.last: Array = np.full(ranks, np.nan)
        self._horizon = horizon
        self._predictor: Predictor = make(name, ranks, sensors, horizon=horizon)

    def observe(self, speed: Array, sensors: Array, iterations: int = 1) -> None:
        """Learn from one iteration, or from the mean of so many: predictors count time by what they observe."""
        self.last = np.where(np.isfinite(speed), speed, self.last)
        self._guarded(lambda: self._expect(iterations))
        for _ in range(min(iterations, self._horizon)):
            self._guarded(lambda: self._predictor.observe(speed.copy(), sensors.copy()))

    def _expect(self, iterations: int) -> None:
        """Predictors of others' may not know of means."""
        if (expect := getattr(self._predictor, "expect_mean_of", None)) is not None:
            expect(iterations)

    def forecast(self, sensors: Array) -> Array | None:
        """Speed at the horizon, finite and > 0; None before any rank has shown one.

        A rank that never showed any gets the median of the others.
        """
        seen = np.isfinite(self.last)
        if not seen.any():
            return None
        speed = self._guarded(lambda: self._predictor.predict(sensors.copy(), self._horizon))
        if speed is None or speed.shape != self.last.shape:
            self.stepped_in += 1
            speed = self.last
        wrong = ~((speed * _WILDEST >= self.last) & (speed <= self.last * _WILDEST))
        if wrong.any():
            self.stepped_in += int(np.count_nonzero(wrong & seen))
            speed = np.where(wrong, self.last, speed)
        return speed if seen.all() else np.where(seen, speed, np.median(speed[seen]))

    @property
    def reads_sensors(self) -> bool:
        """Whether forecasts to come need the sensors of each iteration."""
        return self._guarded(lambda: bool(getattr(self._predictor, "reads_sensors", True))) is not False

    @property
    def trains(self) -> bool:
        """Whether the predictor makes any use of spare time now."""
        if getattr(type(self._predictor), "train", None) is Base.train:
            return False
        return self._guarded(lambda: bool(getattr(self._predictor, "trains", True))) is not False

    def train(self, more: Callable[[], bool]) -> None:
        """Let the predictor spend spare time, while more() is true."""
        self._guarded(lambda: self._predictor.train(more))

    def in_charge(self) -> str:
        """Name of what forecasts, with the share of ranks where several do."""
        names = self._guarded(self._predictor.in_charge)
        if not names:
            return self.name
        counts = sorted(((names.count(name), name) for name in set(names)), reverse=True)
        if len(counts) == 1:
            return counts[0][1]
        return ", ".join(f"{name} {count / len(names):.0%}" for count, name in counts)

    def _guarded(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except Exception:
            # Whatever a predictor of any origin raises, a job of hours must go on; it is counted in stats.
            self.stepped_in += 1
            if self.stepped_in == 1:
                log.exception("predictor %r failed: the last speed steps in; more of these are counted only", self.name)
            return None
