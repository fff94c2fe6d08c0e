"""Threads that serve a rank without being its training thread: they may run on any core the machine grants.

A rank is often pinned to one core. A helper thread that shares it must wait for a slice of it, some milliseconds
where another process is on it too, or pushes the training thread off it. Threads inherit the affinity of the thread
that makes them, so what is begun under `roaming` roams.
"""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def roaming() -> Iterator[None]:
    """Threads made inside run on any core that the control group allows; this thread's own affinity comes back."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    mine = os.sched_getaffinity(0)
    _widen()
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


def _widen() -> None:
    """Ask for every core; the kernel cuts that to what the control group has. A refusal changes nothing."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
