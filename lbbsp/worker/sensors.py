"""What a worker reads of its machine at the barrier, in under 100 microseconds; NaN where there is nothing.

Two kinds of reading: of this moment (running, load, memory), and averages since the read before (shares,
rates).
Knows nothing of frameworks or messages. Another kind of sensor (a GPU's) is another Source in the list.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from lbbsp.worker.sources import Cores, Load, Memory, Own, Pressure

NAN = math.nan
BUDGET_S = 50e-6
BUDGET_SHARE = 5e-4
SURE_EVERY = 4


class Source(Protocol):
    """A few readings that come together."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of what read() returns."""

    @property
    def every_s(self) -> float:
        """Not read more often than this: what it says is coarser, or it is slow."""

    def read(self, now_s: float) -> tuple[float, ...]:
        """One value for each name, NaN where there is none.

        Raises:
            OSError, ValueError, IndexError, KeyError: what it reads is not there or speaks another language.
        """

    def close(self) -> None:
        """Close its files."""


def machine_sources(root: Path = Path("/")) -> list[Source]:
    """All that Linux tells of a process and its machine; root is another place for /proc and /sys."""
    return [Load(root), Cores(root), Own(root), Pressure(root), Memory(root)]


class Sensors:
    """Reads its sources in turn, as many each time as their cost allows; the first one always.

    With cold caches a source costs tens of microseconds. So a read goes on to further sources until it has taken
    BUDGET_S, or BUDGET_SHARE of the time since the read before where that is more; every fourth read takes one
    more source in any case. A source whose turn has not come keeps its reading.

    Args:
        sources: default: those of this machine, the freshest first.
        clock: seconds, monotonic.
    """

    def __init__(self, sources: Sequence[Source] | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._sources = machine_sources() if sources is None else list(sources)
        self._clock = clock
        self._values = [(NAN,) * len(source.names) for source in self._sources]
        self._due_s = [-math.inf] * len(self._sources)
        self._turns = deque(range(1, len(self._sources)))
        self._read_s = -math.inf
        self._reads = 0

    @property
    def names(self) -> tuple[str, ...]:
        """What read() returns, in order."""
        return tuple(name for source in self._sources for name in source.names)

    def read(self) -> tuple[float, ...]:
        """All readings, (sensors,), each finite or NaN. Never raises."""
        now_s = start_s = self._clock()
        budget_s = max(BUDGET_S, BUDGET_SHARE * (now_s - self._read_s))
        self._read_s = now_s
        self._reads += 1
        if self._sources:
            self._read_one(0, now_s)
        for extra in range(len(self._turns)):
            now_s = self._clock()
            if now_s - start_s >= budget_s and (extra or self._reads % SURE_EVERY):
                break
            self._read_one(self._turns[0], now_s)
            self._turns.rotate(-1)
        return tuple(value for values in self._values for value in values)

    def _read_one(self, place: int, now_s: float) -> None:
        if now_s < self._due_s[place]:
            return
        source = self._sources[place]
        self._due_s[place] = now_s + source.every_s
        try:
            self._values[place] = source.read(now_s)
        except (OSError, ValueError, IndexError, KeyError):
            self._values[place] = (NAN,) * len(source.names)

    def close(self) -> None:
        """Close all files."""
        for source in self._sources:
            source.close()
