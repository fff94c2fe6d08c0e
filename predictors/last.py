"""The last speed that a worker showed, whatever the horizon; it steps in for a predictor that breaks."""

import numpy as np

from lbbsp.predictors.base import Array, Base


class Last(Base):
    """Forecast = the newest speed."""

    name = "last"
    reads_sensors = False

    def __init__(self, workers: int, sensors: int = 0, *, horizon: int = 1) -> None:
        super().__init__(workers, sensors, horizon=horizon)
        self._speed: Array = np.full(workers, np.nan)

    def _learn(self, speed: Array, sensors: Array) -> None:
        self._speed = np.where(np.isnan(speed), self._speed, speed)

    def _forecast(self, sensors: Array, horizon: int) -> Array:
        return self._speed.copy()
