"""What this machine allows the demo: cores to pin workers to, a way to slow one of them down, versions of libraries."""

import os
import signal
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from lbbsp.demo.records import WORKERS, Framework
from lbbsp.errors import ConfigError

NEEDED = {"sklearn": "scikit-learn", "matplotlib": "matplotlib"}
EXTRAS = {"torch": "demo", "tensorflow": "demo-tensorflow"}
"""Of this package, for each framework."""
BLURRING_LOAD = 0.7
Slowdown = Literal["busy", "pauses"]


@dataclass(frozen=True)
class Plan:
    """How the two workers are made unequal here."""

    slowdown: Slowdown
    cores: tuple[int, ...] | None
    """The core of each rank."""
    label: str
    """For the display and the figure."""


def plan(slow_rank: int, wanted: Slowdown | Literal["auto"] = "auto") -> Plan:
    """The best way that works here.

    Args:
        slow_rank: the rank to slow down.
        wanted: the way that the user asked for; "auto": a busy process where workers can be pinned to a core each.

    Raises:
        ConfigError: neither way works, or the one asked for does not.
    """
    cores = _cores()
    if wanted != "pauses" and len(cores) >= WORKERS:
        core = cores[slow_rank]
        return Plan("busy", cores[:WORKERS], f"rank {slow_rank} shares core {core} with a busy process")
    if wanted == "busy":
        raise ConfigError(
            f"a busy process needs {WORKERS} cores to pin workers to, and there are {len(cores)}: leave it to pauses"
        )
    if not hasattr(signal, "SIGSTOP"):
        raise ConfigError(
            "this system can neither pin processes to cores nor stop them: run the demo on Linux or macOS"
        )
    why = "as asked" if wanted == "pauses" else f"{len(cores) or 'no'} core to pin to"
    return Plan(
        "pauses",
        cores[:WORKERS] if len(cores) >= WORKERS else None,
        f"rank {slow_rank} is stopped half of the time (SIGSTOP and SIGCONT; {why})",
    )


def _cores() -> tuple[int, ...]:
    """Cores that this process may use; none where the system can't pin."""
    if not hasattr(os, "sched_setaffinity"):
        return ()
    return tuple(sorted(os.sched_getaffinity(0)))


def others_at_work() -> float | None:
    """How many other processes have wanted a core lately, where it is enough to blur the figures."""
    load = os.getloadavg()[0]
    return load if load > BLURRING_LOAD else None


def require_libraries(framework: Framework = "torch") -> None:
    """All that the demo imports, with this framework.

    Raises:
        ConfigError: names what is missing, and how to get it.
    """
    needed: dict[str, str] = {framework: framework} | NEEDED
    missing = [package for module, package in needed.items() if find_spec(module) is None]
    if missing:
        raise ConfigError(f"the demo needs {', '.join(missing)}: pip install 'lbbsp[{EXTRAS[framework]}]'")
