"""Helper threads that share the training thread's core: short slices, so that they run as soon as they wake.

A rank is often pinned to a core that others use too. Linux lets whoever runs there finish a slice of some milliseconds
before a thread that wakes; one that asks for a shorter slice than that may go first (EEVDF, Linux 6.12 and newer). It
gets no more of the core for it. Elsewhere, and where the call is not allowed, nothing changes. Times in nanoseconds.
While nothing is urgent, the opposite serves training better: a batch thread that wakes interrupts nobody.
"""

import contextlib
import ctypes
import os
import platform
import sys
import threading
from collections.abc import Iterator

SLICE_NS = 100_000
"""The shortest that the kernel takes."""
_CALLS = {"x86_64": 314, "aarch64": 274}
"""Number of sched_setattr; the C library has no name for it before glibc 2.41."""


class _Attributes(ctypes.Structure):
    """struct sched_attr, its first version."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("slice_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    ]


@contextlib.contextmanager
def prompt_threads() -> Iterator[None]:
    """Threads of this process that begin inside get short slices."""
    before = _threads()
    yield
    for thread in _threads() - before:
        _shorten(thread)


def be_prompt() -> None:
    """All threads that this process has now get short slices."""
    for thread in _threads():
        _shorten(thread)


class Urgency:
    """Whether the thread that makes this goes before others when it wakes; for that thread alone to use."""

    def __init__(self) -> None:
        self._urgent = True

    def be(self, urgent: bool) -> None:
        """Go before others, or interrupt nobody. Where someone has chosen another policy for it, that one stays."""
        if urgent == self._urgent:
            return
        self._urgent = urgent
        if not hasattr(os, "SCHED_BATCH"):
            return
        now, then = (os.SCHED_BATCH, os.SCHED_OTHER) if urgent else (os.SCHED_OTHER, os.SCHED_BATCH)
        with contextlib.suppress(OSError):  # not allowed here
            if os.sched_getscheduler(0) == now:
                os.sched_setscheduler(0, then, os.sched_param(0))
        if urgent:
            _shorten(threading.get_native_id())


def _threads() -> set[int]:
    """Ids of this process's threads; none where the system does not tell."""
    try:
        return {int(name) for name in os.listdir("/proc/self/task")}
    except OSError:
        return set()


def _shorten(thread: int) -> None:
    call = _CALLS.get(platform.machine())
    if sys.platform != "linux" or call is None:
        return
    try:
        if os.sched_getscheduler(thread) != os.SCHED_OTHER:
            return
        nice = os.getpriority(os.PRIO_PROCESS, thread)
    except OSError:  # it has ended
        return
    size = ctypes.sizeof(_Attributes)
    wanted = _Attributes(size=size, policy=os.SCHED_OTHER, nice=nice, slice_ns=SLICE_NS)
    ctypes.CDLL(None).syscall(call, thread, ctypes.byref(wanted), 0)
