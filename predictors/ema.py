"""Exponential moving average, which smooths more the further ahead it looks.

The newest speed says less about a distant iteration than about the next, so horizon h uses a share of
alpha / h^1.25, with h rounded down to a power of two, at most 8: one average for each.
"""

import numpy as np

from lbbsp.errors import ConfigError
from lbbsp.predictors.base import Array, Base, blend

SLOWDOWNS = 4


class Ema(Base):
    """Average with share `alpha` of the newest speed; a plain mean over the first iterations."""

    name = "ema"
    reads_sensors = False

    def __init__(self, workers: int, sensors: int = 0, *, horizon: int = 1, alpha: float = 0.85) -> None:
        super().__init__(workers, sensors, horizon=horizon)
        if not 0 < alpha <= 1:
            raise ConfigError(f"ema's alpha {alpha} is no share: give one above 0 and at most 1")
        self.alpha = alpha
        self._shares = alpha / 2.0 ** (1.25 * np.arange(SLOWDOWNS)[:, None])
        self._speed: Array = np.full((SLOWDOWNS, workers), np.nan)
        self._count: Array = np.zeros(workers)

    def _learn(self, speed: Array, sensors: Array) -> None:
        self._count = np.minimum(self._count + np.isfinite(speed), 1e6)
        share = np.maximum(self._shares, 1.0 / np.maximum(self._count, 1.0))
        self._speed = blend(self._speed, speed, share)

    def _forecast(self, sensors: Array, horizon: int) -> Array:
        row = min(horizon.bit_length(), SLOWDOWNS) - 1
        speed: Array = self._speed[row].copy()
        return speed
