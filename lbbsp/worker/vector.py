"""What rank 0 broadcasts after each gradient reduction: the sizes in force, and where rank 0 is.

One int64 array of fixed length: sequence number, version, the iteration that the sizes are based on, planned share
and least chunk (see core/parts.py), reductions without a message, how often sensors are read, up to PLACES places in
the data (epoch, draw, hash of the order), then sizes and homes of the ranks. Knows nothing of frameworks, sockets or
time. Sizes in samples.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lbbsp.core.parts import WHOLE_PPM

IntArray = npt.NDArray[np.int64]
PLACES = 4
FIXED = 7
HEADER = FIXED + 3 * PLACES


class Place(NamedTuple):
    """Where an iterator is in the data."""

    epoch: int
    draw: int
    """Index of its newest draw in the epoch."""
    order: int
    """Hash of the epoch's order of samples."""


NOWHERE = Place(-1, -1, -1)


@dataclass(frozen=True, eq=False)
class Vector:
    """The sizes of all ranks; `sequence` counts gradient reductions, 0 is the start of the job."""

    sizes: IntArray
    """(ranks,) samples of each rank in one iteration."""
    sequence: int = 0
    version: int = 0
    """The manager's count of plans; 0 for the equal split at the start."""
    based_on_iteration: int = -1
    """The newest iteration whose reports went into the sizes; -1 for none."""
    homes: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """(ranks,) samples that each rank's loader fetches ahead for one iteration, of the same sum (see homes.py);
    default: the sizes."""
    beta_ppm: int = WHOLE_PPM
    """Planned share of the sizes in millionths; the rest is claimed. Whole: nothing is."""
    chunk: int = 0
    """The least that a rank of equal share claims at once, in samples; 0 leaves it to the ranks."""
    rest: int = -1
    """So many reductions after this one no message follows; -1: none, and the next message opens none (see rest.py)."""
    sensors_every: int = 0
    """Iterations between readings of sensors; 0: as the welcome says."""

    @property
    def holds_through(self) -> int:
        """The newest reduction that these sizes are certain to follow."""
        return self.sequence + max(0, self.rest)

    def __post_init__(self) -> None:
        if not self.homes.size:
            object.__setattr__(self, "homes", self.sizes)


def pack(vector: Vector, places: tuple[Place, ...]) -> IntArray:
    """The payload of one broadcast, (payload_length(ranks),)."""
    head = [vector.sequence, vector.version, vector.based_on_iteration, vector.beta_ppm, vector.chunk, vector.rest]
    head.append(vector.sensors_every)
    for place in (*places[:PLACES], *[NOWHERE] * (PLACES - len(places))):
        head.extend(place)
    return np.concatenate([np.array(head, dtype=np.int64), vector.sizes, vector.homes])


def payload_length(ranks: int) -> int:
    """Numbers in a payload."""
    return HEADER + 2 * ranks


def unpack(payload: IntArray) -> tuple[Vector, tuple[Place, ...]]:
    """The inverse of pack()."""
    sequence, version, based_on, beta_ppm, chunk, rest, every, *head = payload[:HEADER].tolist()
    triples = (head[start : start + 3] for start in range(0, 3 * PLACES, 3))
    places = tuple(Place(*triple) for triple in triples if triple != list(NOWHERE))
    rows = payload[HEADER:].copy()
    ranks = len(rows) // 2
    return Vector(rows[:ranks], sequence, version, based_on, rows[ranks:], beta_ppm, chunk, rest, every), places
