"""Why a rank is slow, from what changed since it was not: where its time goes, what a sample costs, what sensors say.

Every cause comes with its evidence in figures, before and now. Knows nothing of how slow ranks are found. Sensors go
by the names that lbbsp/worker/sources.py gives them; one that a machine does not have is NaN and proves nothing.
Times in seconds.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from lbbsp.core.added import Profile, on_cores, outside, rise, times, where


class Cause(StrEnum):
    """Why a rank is slow."""

    NEIGHBOUR = "neighbour on its cores"
    INPUT = "slow input"
    DISK = "slow disk"
    DATA = "costlier samples"
    CLOCKS = "heat or clocks"
    MEMORY = "memory pressure"
    BLOCKED = "waits inside its step"
    LOOP = "more work in the loop"
    NETWORK = "network"
    PLAN = "more work by plan"
    SILENT = "no reports"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Diagnosis:
    """A cause and the figures that speak for it."""

    cause: Cause
    evidence: str
    certain: bool = True
    """False while sensors have not been read since the rank became slow."""


_MOST = 0.5
"""Share of the added time that a cause must explain."""
_BUSY = 0.9
_PRESSURE = 0.1
"""Added share of time stalled that is no chance."""


def diagnose(before: Profile, now: Profile, fresh: bool) -> Diagnosis:
    """Why a rank takes longer now than before.

    Args:
        before: its usual profile.
        now: its profile since it became slow.
        fresh: whether sensors have been read since.
    """
    added_input_s = rise(before, now, "input_s")
    added_s = added_input_s + rise(before, now, "compute_s")
    if added_s <= 0:
        return Diagnosis(Cause.UNKNOWN, "its time is as before: it was slow from the start, or its peers got faster")
    if added_input_s > _MOST * added_s:
        return _input(before, now, added_input_s / added_s)
    return _compute(before, now, fresh)


def network(own_s: float, late_s: float, usual_s: float) -> Diagnosis:
    """A reduction that ends late on this rank while its own time is fine."""
    figures = f"its reductions end {_ms(late_s)} after the last rank was ready, usually {_ms(usual_s)}"
    return Diagnosis(Cause.NETWORK, f"{figures}; own time {_ms(own_s)} as before")


def more_by_plan(samples: float, share: float, own_s: float, usual_s: float) -> Diagnosis:
    """A rank that takes longer only because it was given more."""
    figures = f"{samples:.0f} samples, {samples / share:.2f} times an equal share"
    return Diagnosis(
        Cause.PLAN, f"{figures}: {_ms(own_s)}; at an equal share it would take {_ms(usual_s)}, which is usual"
    )


def _input(before: Profile, now: Profile, share: float) -> Diagnosis:
    time = f"time in the loader {_ms(before['input_s'])} before, {_ms(now['input_s'])} now"
    time += f": {min(1.0, share):.0%} of what was added"
    if rise(before, now, "psi_io_share") > _PRESSURE:
        return Diagnosis(Cause.DISK, f"{time}; {_change(before, now, 'psi_io_share', 'stalled for a disk')}")
    return Diagnosis(Cause.INPUT, time)


def _compute(before: Profile, now: Profile, fresh: bool) -> Diagnosis:
    ratio = times(before, now, "compute_s")
    time = f"work {_ms(before['compute_s'])} before, {_ms(now['compute_s'])} now ({ratio:.2f}x){where(before, now)}"
    costlier = times(before, now, "cost")
    if math.log(costlier) > _MOST * math.log(ratio):
        return Diagnosis(Cause.DATA, f"{time}; a sample costs {costlier:.2f}x by cost=")
    if not fresh:
        return Diagnosis(Cause.UNKNOWN, f"{time}; sensors not read since", certain=False)
    if rise(before, now, "psi_memory_share") > _PRESSURE:
        return Diagnosis(Cause.MEMORY, f"{time}; {_change(before, now, 'psi_memory_share', 'stalled for memory')}")
    cause, why = _device(before, now, ratio) or _cores(before, now, ratio)
    return Diagnosis(cause, f"{time}; {why}")


def _device(before: Profile, now: Profile, ratio: float) -> tuple[Cause, str] | None:
    """What a GPU's own figures say; None where there is none, or it waits for its host."""
    got, had = now.get("gpu_sm_clock_mhz", math.nan), before.get("gpu_sm_clock_mhz", math.nan)
    if -math.log(times(before, now, "gpu_sm_clock_mhz")) >= 0.4 * math.log(ratio):
        return Cause.CLOCKS, f"its GPU ran at {had:.0f} MHz before, at {got:.0f} MHz now"
    busy, usual = now.get("gpu_busy_share", math.nan), before.get("gpu_busy_share", math.nan)
    if got > 0 and busy > 0.8 * usual:
        return (
            Cause.UNKNOWN,
            f"its GPU is busy {busy:.0%} of the time, {usual:.0%} before, at {got:.0f} MHz: costlier samples (count "
            "them by cost=), or others on that GPU",
        )
    return None


def _cores(before: Profile, now: Profile, ratio: float) -> tuple[Cause, str]:
    """By what it got of its cores: less beside others, less by itself, or as much as ever."""
    got, had = now.get("own_share", math.nan), before.get("own_share", math.nan)
    if not (math.isfinite(got) and math.isfinite(had)):
        return Cause.UNKNOWN, "no reading of its processor time"
    cpu = f"processor time {had:.2f} s before, {got:.2f} s now for each second of own time"
    if rise(before, now, "steal_share") > _PRESSURE:
        return Cause.NEIGHBOUR, f"{cpu}; {_change(before, now, 'steal_share', 'taken by the hypervisor')}"
    worked, queued = on_cores(before, now, ratio)
    if math.isnan(queued):
        return _guess(before, now, ratio, cpu)
    slept = 1.0 - worked - queued
    named = ((worked, "more work"), (queued, "more waits for a core"), (slept, "sleep"))
    told = ", ".join(f"{min(1.0, max(0.0, share)):.0%} {what}" for share, what in named)
    cpu = f"{cpu}; what was added is {told}"
    if queued >= max(worked, slept):
        return Cause.NEIGHBOUR, cpu
    return _working(before, now, cpu) if worked >= slept else (Cause.BLOCKED, f"{cpu}: a lock, a sleep, a remote call")


def _guess(before: Profile, now: Profile, ratio: float, cpu: str) -> tuple[Cause, str]:
    """Where the kernel does not count waits for a core: by how busy its cores are."""
    if math.log(max(before["own_share"], 1e-3) / max(now["own_share"], 1e-3)) < 0.4 * math.log(ratio):
        return _working(before, now, cpu)
    crowd = _crowd(before, now)
    if crowd:
        return Cause.NEIGHBOUR, f"{cpu}; {crowd}"
    return Cause.BLOCKED, f"{cpu}, and its cores idle: a lock, a sleep, a remote call"


def _working(before: Profile, now: Profile, cpu: str) -> tuple[Cause, str]:
    """It has its cores and takes longer."""
    if outside(before, now):
        return Cause.LOOP, f"{cpu}: it has its cores, and works outside of forward and backward"
    return (
        Cause.CLOCKS,
        f"{cpu}: it has its cores and does less with them (or costlier samples: count them by cost=)",
    )


def _crowd(before: Profile, now: Profile) -> str:
    """Signs that others run on its cores."""
    if now.get("cpu_busy_share", math.nan) > _BUSY:
        return _change(before, now, "cpu_busy_share", "its cores busy")
    pushed, usual = now.get("preemptions_per_s", math.nan), before.get("preemptions_per_s", math.nan)
    if math.isnan(now.get("cpu_busy_share", math.nan)) and pushed > 10.0 + 2.0 * usual:
        return f"pushed off a core {usual:.0f} times a second before, {pushed:.0f} now"
    return ""


def _change(before: Profile, now: Profile, name: str, what: str) -> str:
    was = before.get(name, math.nan)
    return f"{what} {now[name]:.0%} of the time" + ("" if math.isnan(was) else f", {was:.0%} before")


def _ms(time_s: float) -> str:
    return f"{1e3 * time_s:.0f} ms"
