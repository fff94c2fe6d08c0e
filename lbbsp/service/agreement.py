"""What the hellos of one job must have in common, and what a job is once they do.

Rank 0's values hold; whoever differs is told which value, what came and what would work. No sockets, no
clock.
"""

from collections.abc import Mapping

import numpy as np

from lbbsp.core.manager import JobSpec
from lbbsp.core.sizing import Bounds
from lbbsp.protocol import OLDEST, PROTOCOL, Hello

SHARED = ("world_size", "global_batch", "granularity", "mode", "claims")
MODES = ("balance", "observe")


def spoken(hello: Hello) -> int:
    """The protocol that is spoken with this rank, if both sides speak it."""
    return min(hello.protocol, PROTOCOL)


def unsound(hello: Hello) -> str | None:
    """Why this hello can't be met whatever the other ranks say; None where it can."""
    if spoken(hello) < max(hello.oldest, OLDEST):
        return (
            f"protocol {hello.protocol} came (it goes down to {hello.oldest}), this manager speaks {PROTOCOL} (down to "
            f"{OLDEST}): install the same version of lbbsp on both sides"
        )
    if hello.rank >= hello.world_size:
        return f"rank {hello.rank} came, a world of {hello.world_size} has ranks 0 to {hello.world_size - 1}"
    if hello.min_samples > hello.max_samples:
        return (
            f"rank {hello.rank}: min_samples {hello.min_samples} is above max_samples {hello.max_samples}: "
            "raise the maximum or lower the minimum"
        )
    if hello.mode not in MODES:
        return f"mode {hello.mode!r} is unknown; known: {', '.join(MODES)}"
    return None


def disagreement(hello: Hello, rank_0: Hello) -> str | None:
    """Which value differs from rank 0's, and what would work; None where all agree."""
    for name in SHARED:
        ours, theirs = getattr(hello, name), getattr(rank_0, name)
        if ours != theirs:
            return (
                f"{name} disagrees: rank {hello.rank} says {ours}, rank 0 says {theirs}: "
                f"all ranks of a job need the same, {theirs} would work"
            )
    return None


def job_spec(hellos: Mapping[int, Hello]) -> JobSpec:
    """The job that hellos of ranks 0 .. world_size - 1 describe (others are passed over); the largest lookahead holds.

    Raises:
        BoundsError: global batch, bounds and granularity exclude one another.
    """
    in_order = [hellos[rank] for rank in range(hellos[0].world_size)]
    bounds = Bounds(
        global_batch=in_order[0].global_batch,
        min_samples=np.array([hello.min_samples for hello in in_order], dtype=np.int64),
        max_samples=np.array([hello.max_samples for hello in in_order], dtype=np.int64),
        granularity=in_order[0].granularity,
    )
    bounds.check()
    return JobSpec(
        bounds=bounds,
        lookahead=max(hello.lookahead for hello in in_order),
        reads_ahead=max(hello.reads_ahead for hello in in_order),
        sensors=in_order[0].sensors,
        identities=tuple(f"{hello.machine}/{hello.device}" for hello in in_order),
        device_kinds=tuple(hello.device_kind for hello in in_order),
        claims=in_order[0].claims,
    )
