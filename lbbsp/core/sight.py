"""What detectors of slow ranks see, what they say, and what all of them share: thresholds that may change at any time.

They judge own time at the reference size, that is after the worker's fitted curve has taken out how much work it was
given. Knows nothing of causes, clocks or plans. Times in seconds.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from lbbsp.errors import ConfigError

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Sight:
    """One closed iteration as detectors see it. Arrays are (ranks,); NaN = no settled report."""

    iteration: int
    samples: Array
    """A draw's, on average over the iteration's draws; so are the times."""
    time_s: Array
    """Own time."""
    reference_s: Array
    """Own time had this rank been given the reference size, by its fitted curve."""
    forecast_s: Array
    """What had been forecast for reference_s; NaN before any."""
    wait_s: Array
    """Waits for others in the iteration before, shared out among the draws likewise."""
    input_s: Array
    """The part of time_s spent waiting for the loader."""
    cost: Array
    """What a sample cost by the user's own count (tokens, pixels); NaN where not counted."""
    sensors: Array
    """(ranks, sensors); NaN where not read this time."""
    phases_s: Array | None = None
    """(ranks, 3) of time_s: before forward, forward, backward; NaN where not told; None: by nobody this time."""


@dataclass(frozen=True, eq=False)
class Judgement:
    """What one detector says of one iteration, (ranks,) each."""

    slowdown: Array
    """Times slower than expected; NaN where nothing can be said."""
    limit: Array
    """Suspicious above it."""


class Detector(Protocol):
    """Finds slow ranks in what it sees, iteration by iteration."""

    options: dict[str, float]

    def __init__(self, ranks: int, **options: float) -> None: ...

    def adjust(self, **options: float) -> None:
        """Change thresholds from the next iteration on; ConfigError for an unknown one or none above 0."""

    def judge(self, sight: Sight) -> Judgement:
        """Judge one iteration, then learn from it."""


class Options:
    """Thresholds by name; they may be changed at any time."""

    defaults: ClassVar[dict[str, float]] = {}

    def __init__(self, ranks: int, **options: float) -> None:
        self.ranks = ranks
        self.options = dict(self.defaults)
        self.adjust(**options)

    def adjust(self, **options: float) -> None:
        """Change thresholds from the next iteration on.

        Raises:
            ConfigError: unknown name, or a value that is not above 0.
        """
        for name, value in options.items():
            if name not in self.options:
                raise ConfigError(f"unknown threshold {name!r}; known: {', '.join(sorted(self.options))}")
            if not 0 < value < float("inf"):
                raise ConfigError(f"threshold {name} must be above 0 and finite, got {value}")
        self.options.update(options)


def low_median(values: Array) -> float:
    """The lower median of what is finite, NaN of nothing: with two ranks the faster one."""
    known = values[np.isfinite(values)]
    if not len(known):
        return float("nan")
    middle = (len(known) - 1) // 2
    return float(np.partition(known, middle)[middle])
