"""Predictors of worker speed: one family, one folder, one file each, and the registry that names them all.

A new predictor is one file and one line in PREDICTORS; the shared tests find it.
"""

from typing import Any

from lbbsp.errors import ConfigError
from lbbsp.predictors.arima import Arima
from lbbsp.predictors.arx import Arx
from lbbsp.predictors.auto import Auto
from lbbsp.predictors.base import Array, Predictor
from lbbsp.predictors.ema import Ema
from lbbsp.predictors.last import Last
from lbbsp.predictors.mean import Mean
from lbbsp.predictors.narx import Narx

__all__ = ["PREDICTORS", "Array", "Predictor", "make"]

PREDICTORS: dict[str, type[Predictor]] = {
    "last": Last,
    "ema": Ema,
    "mean": Mean,
    "arima": Arima,
    "arx": Arx,
    "narx": Narx,
    "auto": Auto,
}


def make(name: str, workers: int, sensors: int = 0, **options: Any) -> Predictor:
    """The predictor of that name for so many workers and sensors. Raises ConfigError on an unknown name."""
    if name not in PREDICTORS:
        raise ConfigError(f"unknown predictor {name!r}; known: {', '.join(sorted(PREDICTORS))}")
    return PREDICTORS[name](workers, sensors, **options)
