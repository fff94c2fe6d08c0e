"""What a job is as its ranks agreed, and what a plan is.

Knows nothing of how plans are made. Sizes in samples.
"""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lbbsp.core.bounds import Bounds, IntArray

Ranks = npt.NDArray[np.intp]


NOBODYS = ""
"""A name of a device that no other device shares."""


@dataclass(frozen=True, eq=False)
class JobSpec:
    """What a job is, as its ranks agreed."""

    bounds: Bounds
    lookahead: int = 0
    """Largest lookahead of any rank, in iterations."""
    sensors: tuple[str, ...] = ()
    identities: tuple[str, ...] = ()
    """Machine and device of each rank: what is learnt follows them; empty = the rank numbers."""
    device_kinds: tuple[str, ...] = ()
    """`cpu`, `cuda` and so on, of each rank; empty = all CPUs."""
    claims: str = "off"
    """`on` or `auto`: ranks may claim a part of each iteration."""
    reads_ahead: int = 0
    """Iterations that loader workers fetch ahead in chunks: what a plan moves late, its new rank reads at the draw."""

    def same_devices(self, earlier: "JobSpec") -> tuple[Ranks, Ranks]:
        """Ranks here and in an earlier job on the same devices, one to one.

        Where several ranks share an identity, the k-th here goes with the k-th there.
        """
        places: dict[str, list[int]] = {}
        for rank, name in enumerate(earlier._names()):
            places.setdefault(name, []).append(rank)
        pairs = [(rank, places[name].pop(0)) for rank, name in enumerate(self._names()) if name and places.get(name)]
        return np.array([a for a, _ in pairs], dtype=np.intp), np.array([b for _, b in pairs], dtype=np.intp)

    def absent_from(self, other: "JobSpec") -> "JobSpec | None":
        """This job with only those of its devices named that another one lacks; None where it lacks none."""
        left = Counter(other._names())
        names = []
        for name in self._names():
            left[name] -= 1
            names.append(name if left[name] < 0 else NOBODYS)
        lacking = any(count < 0 for count in left.values())
        return replace(self, identities=tuple(names)) if lacking else None

    def _names(self) -> list[str]:
        return list(self.identities) or [f"rank {rank}" for rank in range(self.bounds.world_size)]


@dataclass(frozen=True, eq=False)
class PlanMade:
    """The plan after one closed iteration."""

    version: int
    """Counts the plans of the job."""
    based_on_iteration: int
    """The newest iteration whose reports went into it."""
    sizes: IntArray
    """Samples of each rank."""
    changed: bool
    """Whether the sizes differ from those of the plan before."""
    beta: float = 1.0
    """Share of its size that each rank works without asking; the rest is claimed."""
    chunk: int = 0
    """The least that a rank of equal share claims at once, in samples; 0 leaves it to the ranks."""
