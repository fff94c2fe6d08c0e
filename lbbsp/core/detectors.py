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


def make(name: str, ranks: int, **options: float) -> Detector:
    """A detector by name.

    Raises:
        ConfigError: unknown name or threshold.
    """
    if name not in DETECTORS:
        raise ConfigError(f"unknown detector {name!r}; known: {', '.join(sorted(DETECTORS))}")
    return DETECTORS[name](ranks, **options)
