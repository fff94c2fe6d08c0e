"""Counters of claims in the job's own rendezvous store, one an iteration: named anew each time, never reset.

The store's death ends the job anyway. A name holds the incarnation's nonce and the reductions before the iteration,
so that no rank can meet another iteration's counter; it is deleted after its reduction, when nobody can add any more.
"""

import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, TypeVar

from torch.distributed import distributed_c10d

from lbbsp.prompt import prompt_threads

T = TypeVar("T")

PREFIX = "lbbsp"
LATENCY_SHARE = 0.1
"""Of the newest answer in the usual latency."""


class Counters:
    """A rank's way to the counters.

    Args:
        timeout: of one answer of the store.
        store: default: the job's.
    """

    def __init__(self, timeout: timedelta, store: Any = None) -> None:
        store = distributed_c10d._get_default_store() if store is None else store
        own = store.clone() if hasattr(store, "clone") else store
        own.set_timeout(timeout)
        self._store = distributed_c10d.PrefixStore(PREFIX, own)
        self._used: list[str] = []
        self._errands: SimpleQueue[Errand | None] | None = None
        self.latency_s = 0.0
        """Usual time until the store answers; 0 before any."""
        self.asked = 0

    def of(self, name: str) -> "StoreCounter":
        """The counter of this name."""
        self._used.append(name)
        return StoreCounter(self, name)

    def add(self, name: str, units: int) -> int:
        """Ask the store.

        Raises:
            torch.distributed.DistError: torch's own, where the store is gone or late.
        """
        began_s = time.perf_counter()
        end = int(self._store.add(name, units))
        took_s = time.perf_counter() - began_s
        self.asked += 1
        self.latency_s += (LATENCY_SHARE if self.latency_s else 1.0) * (took_s - self.latency_s)
        return end

    def later(self, call: Callable[[], T], delay_s: float) -> Callable[[], T]:
        """See lbbsp.worker.claiming.Counter; from a thread of its own, which no exit waits for."""
        if self._errands is None:
            self._errands = errands = SimpleQueue[Errand | None]()
            with prompt_threads():
                threading.Thread(target=_run, args=(errands,), name="lbbsp-claim", daemon=True).start()
            weakref.finalize(self, errands.put, None)
        errand = Errand(call, delay_s)
        self._errands.put(errand)
        return errand.result

    def reduced(self, delete: bool) -> None:
        """All ranks are past the counters used so far; one rank deletes them."""
        used, self._used = self._used, []
        for name in used if delete else ():
            self._store.delete_key(name)


class StoreCounter:
    """The counter of one iteration; see lbbsp.worker.claiming.Counter."""

    def __init__(self, counters: Counters, name: str) -> None:
        self._counters, self._name = counters, name

    def add(self, units: int) -> int:
        """Add and return the sum so far, this included."""
        return self._counters.add(self._name, units)

    def later(self, call: Callable[[], T], delay_s: float) -> Callable[[], T]:
        """After a delay, or as soon as somebody waits."""
        return self._counters.later(call, delay_s)


class Errand:
    """One call to be made in another thread."""

    def __init__(self, call: Callable[[], Any], delay_s: float) -> None:
        self._call, self._delay_s = call, delay_s
        self._wanted, self._done = threading.Event(), threading.Event()
        self._value: Any = None
        self._error: Exception | None = None

    def run(self) -> None:
        """In the other thread."""
        if self._delay_s > 0:
            self._wanted.wait(self._delay_s)
        try:
            self._value = self._call()
        except Exception as error:  # torch's own; raised where the answer is wanted
            self._error = error
        self._done.set()

    def result(self) -> Any:
        """In the thread that wants it."""
        self._wanted.set()
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._value


def _run(errands: "SimpleQueue[Errand | None]") -> None:
    while (errand := errands.get()) is not None:
        errand.run()
