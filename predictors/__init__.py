"""Predictors of worker speed: one family, one folder, one file each, and the registry that names them all.

A new predictor is one file and one line in PREDICTORS; the shared tests find it.
"""

from contextlib import suppress
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


def make(spec: str, workers: int, sensors: int = 0, **options: Any) -> Predictor:
    """A predictor for so many workers and sensors, by name; options may follow, as in `ema:alpha=0.3`.

    Several are set apart by commas, parts of one by plus signs: `arima:order=1+1+1,background=false`.

    Raises:
        ConfigError: unknown name or option.
    """
    name, _, text = spec.partition(":")
    if name not in PREDICTORS:
        raise ConfigError(f"unknown predictor {name!r}; known: {', '.join(sorted(PREDICTORS))}")
    try:
        return PREDICTORS[name](workers, sensors, **options, **_options(text))
    except TypeError as error:
        raise ConfigError(f"predictor {spec!r}: {error}") from None


def _options(text: str) -> dict[str, Any]:
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return {name.strip(): _value(value) for name, _, value in pairs}


def _value(text: str) -> Any:
    if "+" in text:
        return tuple(_value(part) for part in text.split("+"))
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text
