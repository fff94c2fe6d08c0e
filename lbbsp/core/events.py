"""A slow rank as it is shown, and what happens to it."""

from dataclasses import dataclass
from enum import StrEnum

from lbbsp.core.causes import Diagnosis


class Change(StrEnum):
    """What happened to a flag."""

    RAISED = "raised"
    EXPLAINED = "explained"
    CLEARED = "cleared"


@dataclass(frozen=True)
class Event:
    """A flag was raised, explained or cleared."""

    change: Change
    rank: int
    iteration: int
    since: int
    slowdown: float
    """Times slower than expected; NaN where it is silent."""
    detectors: tuple[str, ...]
    diagnosis: Diagnosis


@dataclass
class Straggler:
    """A rank that is flagged now."""

    rank: int
    since: int
    """Iteration of the first suspicion."""
    slowdown: float
    detectors: tuple[str, ...]
    diagnosis: Diagnosis
    lasting: bool = False
    explained: int = -1
    """Iteration when its cause was last looked for."""
