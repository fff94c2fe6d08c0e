"""What a check says."""

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"
    """A job runs, but could run better."""
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's, with a fix unless all is well."""

    name: str
    text: str
    level: Level = Level.OK
    fix: str = ""
