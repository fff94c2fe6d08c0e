"""Sends reports that were held back too long: their rank waits for one that hangs, and the manager must see who.

A thread that looks once a second, only where reports are held back at all. Seconds.
"""

import threading
import weakref
from collections.abc import Callable

LOOK_EVERY_S = 1.0


class Overdue:
    """Calls a bound method once a second from the first start() on, until stop() or its owner is gone."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = weakref.WeakMethod(look)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look; again is fine."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lbbsp-overdue", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_EVERY_S):
            look = self._look()
            if look is None:
                return
            look()
            del look
