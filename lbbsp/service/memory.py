"""A last resort against a peer that makes the manager hold messages without end: all connections are closed.

libzmq bounds whole messages that wait, not the parts of one that never ends. Ranks come back by themselves within a
second, and train on meanwhile. MiB, seconds.
"""

import contextlib
import ctypes
import logging
import resource
from collections.abc import Callable

log = logging.getLogger(__name__)

NOT_AGAIN_S = 30.0
"""Where it did not help, it is not tried again for so long."""
PAGE_MIB = resource.getpagesize() / 2**20


def resident_mib() -> float:
    """Memory of this process; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as told:
            return int(told.read().split()[1]) * PAGE_MIB
    except OSError:
        return 0.0


class MemoryGuard:
    """Looks at the memory of this process about once a second.

    Args:
        most_mib: closes all connections above it.
        hang_up: closes them.
        read: memory now.
    """

    def __init__(self, most_mib: float, hang_up: Callable[[], None], read: Callable[[], float] = resident_mib) -> None:
        self._most_mib, self._hang_up, self._read = most_mib, hang_up, read
        self._due_s = float("-inf")
        self._trim = False

    def look(self, now_s: float) -> bool:
        """Do what is due; True where connections were closed."""
        if self._trim:
            self._trim = False
            _give_back()
        had_mib = self._read()
        if had_mib <= self._most_mib or now_s < self._due_s:
            return False
        self._due_s = now_s + NOT_AGAIN_S
        self._trim = True
        log.error(
            "%.0f MiB are held, above --max-memory-mib %.0f: all connections are closed; ranks come back by themselves",
            had_mib,
            self._most_mib,
        )
        self._hang_up()
        return True


def _give_back() -> None:
    """Free memory goes back to the system, where its library can do that."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
