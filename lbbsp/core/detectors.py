"""The registry of detectors: one family, one interface; a new one is a class and a line here.

`silent`, which judges the clock instead of iterations, stands in stragglers.py. Knows nothing of flags or causes.
"""

from lbbsp.core.against_past import Forecast, History, Robust, Rolling
from lbbsp.core.against_peers import Quartiles, Threshold
from lbbsp.core.sight import Detector
from lbbsp.errors import ConfigError

DETECTORS: dict[str, type[Detector]] = {
    "threshold": Threshold,
    "quartiles": Quartiles,
    "rolling": Rolling,
    "robust": Robust,
    "history": History,
    "forecast": Forecast,
}


DEFAULT: tuple[str, ...] = ("history",)


def chosen(names: str) -> tuple[str, ...]:
    """Detectors from text as in "history,robust"; "none" is none of them.

    Raises:
        ConfigError: unknown name, or none at all.
    """
    found = tuple(dict.fromkeys(name for name in (part.strip() for part in names.split(",")) if name))
    if found == ("none",):
        return ()
    if not found:
        raise ConfigError(f"no detector is named in {names!r}; known: {', '.join(sorted(DETECTORS))}, or none")
    for name in found:
        _known(name)
    return found


def make(name: str, ranks: int, **options: float) -> Detector:
    """A detector by name.

    Raises:
        ConfigError: unknown name or threshold.
    """
    _known(name)
    return DETECTORS[name](ranks, **options)


def _known(name: str) -> None:
    if name not in DETECTORS:
        raise ConfigError(f"unknown detector {name!r}; known: {', '.join(sorted(DETECTORS))}")
