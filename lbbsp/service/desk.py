"""Where other threads ask the poll loop for something: it answers between two messages, and only when asked.

Knows nothing of what is asked for. Seconds.
"""

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class Desk(Generic[Answer]):
    """One question, asked from any thread.

    Args:
        make: the answer; called in the poll loop's thread alone.
        kept_s: an answer serves all who ask within this time.
    """

    def __init__(self, make: Callable[[], Answer], kept_s: float = 0.5) -> None:
        self.bell, self._ring = socket.socketpair()
        """Readable where somebody waits."""
        self.faults = 0
        self._make = make
        self._kept_s = kept_s
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._asking = threading.Lock()
        self._newest: tuple[float, Answer] | None = None

    def ask(self, timeout_s: float) -> Answer | None:
        """The answer, a moment old at most; None where the poll loop does not answer in time."""
        with self._asking:
            if self._newest is not None and time.perf_counter() - self._newest[0] < self._kept_s:
                return self._newest[1]
            while not self._answers.empty():
                self._answers.get()  # late, to an earlier question
            try:
                self._ring.send(b"?")
                answer = self._answers.get(timeout=timeout_s)
            except (OSError, queue.Empty):
                return None
            self._newest = (time.perf_counter(), answer)
            return answer

    def answer(self) -> None:
        """Answer whoever waits; call where `bell` is readable."""
        self.bell.recv(64)
        try:
            self._answers.put(self._make())
        except Exception:  # a fault of ours: whoever asked gets no answer, and the loop goes on
            log.log(logging.ERROR if not self.faults else logging.DEBUG, "no answer can be made", exc_info=True)
            self.faults += 1

    def close(self) -> None:
        """Nobody is answered any more."""
        self.bell.close()
        self._ring.close()
