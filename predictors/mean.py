"""The long-run mean of each worker's speed: right where what comes and goes is shorter than an iteration."""

import numpy as np

from lbbsp.predictors.base import Array, Base, blend


class Mean(Base):
    """Mean over the whole run, or over about the last `memory` iterations where the run is longer."""

    name = "mean"
    reads_sensors = False

    def __init__(self, workers: int, sensors: int = 0, *, horizon: int = 1, memory: int = 1000) -> None:
        super().__init__(workers, sensors, horizon=horizon)
        self.memory = memory
        self._speed: Array = np.full(workers, np.nan)
        self._count: Array = np.zeros(workers)

    def _learn(self, speed: Array, sensors: Array) -> None:
        self._count = np.minimum(self._count + np.isfinite(speed), self.memory)
        self._speed = blend(self._speed, speed, 1.0 / np.maximum(self._count, 1.0))

    def _forecast(self, sensors: Array, horizon: int) -> Array:
        return self._speed.copy()
