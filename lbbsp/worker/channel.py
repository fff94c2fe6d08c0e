"""What a rank's follower asks of the way plans travel, and that way on ranks other than 0.

One message of rank 0's follows each gradient reduction, but for those that a message has said will have none (a rest,
see rest.py); the others post their receive at their last gradient and wait for it at their next draw. Rank 0's side
is in relay.py. Knows nothing of frameworks: the adapter brings the `Link`. Seconds.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from lbbsp.core.sizing import Bounds
from lbbsp.protocol import Hello, Report
from lbbsp.worker.client import HOLD_S, Client
from lbbsp.worker.overdue import Overdue
from lbbsp.worker.rest import NEVER
from lbbsp.worker.vector import IntArray, Place, Vector, unpack


class Link(Protocol):
    """The job's own CPU control group, as an adapter provides it."""

    def send(self, payload: IntArray) -> None:
        """Rank 0: broadcast; returns when the payload is on its way to all."""

    def receive(self) -> Callable[[], IntArray]:
        """Others: post the receive of the next broadcast; what is returned waits for it."""


class Reduction(NamedTuple):
    """One gradient reduction as a rank saw it: its number, where its iterators were, what it reports.

    Places and what is left are told only where a message may follow.
    """

    sequence: int
    places: tuple[Place, ...]
    at_s: float
    report: Report | None = None
    left: int = 0
    """Reductions that the epoch will still have."""

    paused_s: float = 0.0
    """Of the time since the reduction before, what was neither training nor a wait."""


class Restart(NamedTuple):
    """Another incarnation begins."""

    hello: Hello
    bounds: Bounds


def held_back(newest: Vector, sequence: int) -> bool:
    """Whether this reduction's report may leave later: all of a rest leave at its last reduction.

    So does that of the reduction after it, at the end of the next rest: the message that follows most likely opens one.
    """
    return newest.rest > 0 and sequence <= newest.holds_through + 1 and sequence != newest.holds_through


def say(client: Client, event: Reduction, newest: Vector) -> None:
    """Report a reduction, or hold its report back; at the end of a rest what is held leaves, with a report or without.

    Args:
        client: of this rank.
        event: with the report, if its own time is known.
        newest: the sizes of the newest message.
    """
    later = held_back(newest, event.sequence)
    if event.report is not None:
        client.report(event.report, later, max(0, newest.rest) + 1)
    elif not later:
        client.flush()


class Channel(Protocol):
    """The side of a rank, alike for rank 0 and the others."""

    def reduction(self, event: Reduction) -> None:
        """The last gradient is ready."""

    def reduced(self) -> None:
        """The newest reduction has ended; called only where a message may follow it."""

    def vector(self, usual_tail_s: float, sent: bool = False) -> tuple[Vector, tuple[Place, ...]]:
        """The sizes that follow the newest reduction, and where rank 0 was; waits for them.

        With `sent`, nothing of ours is under way when it returns: loader workers may be forked, the group destroyed;
        and no report is held back.
        """

    def restart(self, hello: Hello, start: Vector, bounds: Bounds) -> None:
        """Begin another incarnation with these sizes; nothing of ours is under way."""

    def close(self) -> None:
        """Stop; nothing is sent any more."""


class Receiver:
    """Ranks other than 0: report from the training thread, receive what rank 0 sends."""

    def __init__(self, client: Client, link: Link, start: Vector) -> None:
        self._client = client
        self._link = link
        self._newest: tuple[Vector, tuple[Place, ...]] = (start, ())
        self._posted: deque[Callable[[], IntArray]] = deque()
        self._speaking = threading.Lock()
        self._overdue = Overdue(self._flush_overdue)

    def reduction(self, event: Reduction) -> None:
        """Report, then post the receive, where there will be something to receive."""
        newest = self._newest[0]
        with self._speaking:
            say(self._client, event, newest)
        if self._client.holds:
            self._overdue.start()
        if self._posted and newest.rest != NEVER:  # rare: what is on its way may open a rest
            self.vector(0.0)
        if event.sequence > self._newest[0].holds_through:
            self._posted.append(self._link.receive())

    def reduced(self) -> None:
        """Nothing to do here."""

    def vector(self, usual_tail_s: float, sent: bool = False) -> tuple[Vector, tuple[Place, ...]]:
        """Wait for all receives posted so far; the last one counts."""
        while self._posted:
            self._newest = unpack(self._posted.popleft()())
        if sent:
            with self._speaking:
                self._client.flush()
        return self._newest

    def restart(self, hello: Hello, start: Vector, bounds: Bounds) -> None:
        """Say hello again."""
        self._newest = (start, ())
        with self._speaking:
            self._client.hello_again(hello)

    def close(self) -> None:
        """Say bye to the manager."""
        self._overdue.stop()
        with self._speaking:
            self._client.close()

    def _flush_overdue(self) -> None:
        with self._speaking:
            self._client.flush(HOLD_S)
