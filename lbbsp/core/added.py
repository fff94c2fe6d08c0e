"""Where the time went that a rank takes longer: by part of its step, and by what it did meanwhile.

Pure figures from what a rank looked like before and since; causes are named elsewhere. Times in seconds.
"""

import math
from collections.abc import Mapping

Profile = Mapping[str, float]
"""What one rank looks like: `compute_s` and `input_s` at the reference size, `cost`, sensors by name; where told the
parts of compute_s (PARTS), and of the time between two readings what it got of its cores and how long it took:
`own_share`, `delay_share`, `window_s`."""

PARTS = {
    "prepare_s": "between draw and forward",
    "forward_s": "in forward",
    "backward_s": "in backward",
    "rest_s": "in the rest (loss, optimizer, logging)",
}


def rise(before: Profile, now: Profile, name: str) -> float:
    """By how much a figure grew; 0 where it is not known (a first reading counts from 0)."""
    was, is_ = before.get(name, math.nan), now.get(name, math.nan)
    return 0.0 if math.isnan(is_) else is_ - (0.0 if math.isnan(was) else was)


def times(before: Profile, now: Profile, name: str) -> float:
    """How many times as large a figure is as before; NaN where it is not known or not above 0, then or now."""
    was, is_ = before.get(name, math.nan), now.get(name, math.nan)
    found = is_ / was if was > 0 else math.nan
    return found if 0 < found < math.inf else math.nan


def by_part(before: Profile, now: Profile) -> dict[str, float]:
    """By part of compute_s the share of what was added; nothing where parts were not told before and since."""
    grown = {part: now.get(part, math.nan) - before.get(part, math.nan) for part in PARTS}
    if not all(map(math.isfinite, grown.values())):
        return {}
    total = sum(max(0.0, grown_s) for grown_s in grown.values())
    return {part: max(0.0, grown_s) / total for part, grown_s in grown.items()} if total > 0 else {}


def where(before: Profile, now: Profile) -> str:
    """By part, in words; empty where it is not known."""
    shares = sorted(by_part(before, now).items(), key=lambda item: -item[1])
    said = [f"{share:.0%} {PARTS[part]}" for part, share in shares if share >= 0.1]
    return f", of what was added {', '.join(said)}" if said else ""


def outside(before: Profile, now: Profile) -> bool:
    """Whether it lies outside of forward and backward, far beyond their usual share: a slower core slows all alike."""
    added = by_part(before, now)
    if not added:
        return False
    whole_s = sum(before[part] for part in PARTS)
    usual = sum(before[part] for part in ("prepare_s", "rest_s")) / whole_s if whole_s > 0 else 0.0
    return added["prepare_s"] + added["rest_s"] > 0.5 * (1.0 + usual)


def on_cores(before: Profile, now: Profile, ratio: float) -> tuple[float, float]:
    """The shares of what was added that are due to more work and to more waits for a core; NaN where not known.

    More work takes as much more time as it takes more processor time: on crowded cores it waits in proportion. What is
    left it slept. Readings may hold some iterations of before: so the ratio is theirs, where it is known.
    """
    windows = times(before, now, "window_s")
    ratio = windows if windows > 1.0 else ratio
    if not ratio > 1.0:
        return math.nan, math.nan
    had, got = before.get("own_share", math.nan), now.get("own_share", math.nan)
    waited, waits = before.get("delay_share", math.nan), now.get("delay_share", math.nan)
    worked = (got * ratio / max(had, 1e-3) - 1.0) / (ratio - 1.0)
    return worked, (waits * ratio - waited) / (ratio - 1.0) - max(0.0, worked) * waited
