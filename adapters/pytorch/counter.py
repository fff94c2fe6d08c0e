"""Counters of claims in the job's own rendezvous store, one an iteration: named anew each time, never reset.

The store's death ends the job anyway. A name holds the incarnation's nonce and the reductions before the iteration,
so that no rank can meet another iteration's counter; it is deleted after its reduction, when nobody can add any more.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

from torch.distributed import distributed_c10d

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

    def add_later(self, name: str, units: int) -> "Future[int]":
        """Ask the store from a thread of its own, which no exit waits for."""
        answer: Future[int] = Future()

        def ask() -> None:
            try:
                answer.set_result(self.add(name, units))
            except Exception as error:  # torch's own; raised where the answer is wanted
                answer.set_exception(error)

        threading.Thread(target=ask, name="lbbsp-claim", daemon=True).start()
        return answer

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

    def add_later(self, units: int) -> Callable[[], int]:
        """Begin to add; what is returned waits for the sum."""
        return self._counters.add_later(self._name, units).result
