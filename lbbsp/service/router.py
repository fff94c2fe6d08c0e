"""The manager's ROUTER: what came, who speaks, and whether it is too much; replies out.

Bounds what a peer can make us hold: the size of a frame, time to shake hands, messages a second.
Knows nothing of jobs. Seconds, bytes.
"""

import contextlib
import os
import socket as sockets
import time
from collections.abc import Callable
from typing import NamedTuple

import zmq

from lbbsp.errors import ServiceError
from lbbsp.service.keys import ANYBODY, Caller
from lbbsp.service.lane_tokens import Speaker
from lbbsp.service.options import ManagerOptions
from lbbsp.service.rates import Rates
from lbbsp.service.rejections import Rejections
from lbbsp.service.zap import DOMAIN

MAX_FRAME_BYTES = 16_384
"""The longest hello has about 4 KiB; who sends more is hung up on."""
QUEUE_OUT = 1_000
"""Replies to one peer that wait; those beyond are dropped."""
MOST_HUNG_UP = 4_096
MESSAGE_BYTES = 1_024
"""Longer ones count as several in a peer's rate."""
HANDSHAKE_MS = 5_000
AGAIN_WITHIN_S = 5.0
KEEPALIVE_S = {zmq.TCP_KEEPALIVE_IDLE: 10, zmq.TCP_KEEPALIVE_INTVL: 5, zmq.TCP_KEEPALIVE_CNT: 3}
"""A host that lost power is noticed after some 25 s, and sooner by its heartbeats, which say how long they hold."""


class Incoming(NamedTuple):
    """One message that may be looked at."""

    peer: bytes
    frame: bytes
    at_s: float
    caller: Caller
    public: str = ""
    """The key of its connection; empty where keys bind nobody to a job."""


class Router:
    """Bound when made.

    Args:
        context: a doorman is in it already, where there are keys.
        options: where to listen and for whom.
        rejections: counts what is dropped here.

    Raises:
        ServiceError: the address can't be bound.
    """

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", options: ManagerOptions, rejections: Rejections
    ) -> None:
        self._context, self._options = context, options
        self._rejections = rejections
        self._rates = Rates(options.max_rate)
        self._hung_up: set[bytes] = set()
        self._hunting = False
        keys = options.keys
        self._guests = None if keys is None or keys.guests.all_may_all else keys.guests
        self.socket = self._listen(options.bind)
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.hung_up_on: Callable[[bytes], None] = lambda peer: None
        """Called with a peer that is hung up on."""

    def receive(self, now_s: float) -> Incoming | None:
        """The next message; None where one came that is dropped.

        Raises:
            zmq.Again: there is none.
        """
        caller: Caller | None = ANYBODY
        public = ""
        first: zmq.Frame | None = None
        if self._guests is None and not self._hunting:
            peer = self.socket.recv(zmq.NOBLOCK)
        else:
            first = self.socket.recv(zmq.NOBLOCK, copy=False)
            peer = first.bytes
            if self._guests is not None:
                public = str(first.get("User-Id"))
                caller = self._guests.get(public)
        frame = self.socket.recv()
        more = self._drain()
        if not self.allows(peer, now_s, len(frame), 1 + more):
            self._hang_up_on(peer, first, now_s)
            return None
        if more:
            self._rejections.add("", "malformed", f"{1 + more} frames came, one was wanted")
            return None
        return self._admit(Incoming(peer, frame, now_s, caller, public) if caller is not None else None)

    def through_lane(self, speaker: Speaker, frame: bytes, now_s: float) -> Incoming | None:
        """A message that came through a lane; None where it is dropped, and the lane is to be closed."""
        if not self.allows(speaker.peer, now_s, len(frame)):
            if self._guests is not None:
                self._guests.ban(speaker.public, now_s)
            return None
        caller = ANYBODY if self._guests is None else self._guests.get(speaker.public)
        return self._admit(None if caller is None else Incoming(speaker.peer, frame, now_s, caller, speaker.public))

    def _admit(self, incoming: Incoming | None) -> Incoming | None:
        if incoming is None:
            self._rejections.add("", "key taken away", "its key is listed no more")
        return incoming

    def allows(self, peer: bytes, now_s: float, size_bytes: int, messages: int = 1) -> bool:
        """Whether this peer may send so much now; where not, that is counted."""
        if self._rates.spend(peer, now_s, messages + size_bytes // MESSAGE_BYTES):
            return True
        self._rejections.add("", "too fast", "a peer that sends more than --max-rate a second is hung up on")
        return False

    def _hang_up_on(self, peer: bytes, first: "zmq.Frame | None", now_s: float) -> None:
        """Once; what it has sent may still come. ZeroMQ can't, so its connection is shut under it.

        Only a frame in ZeroMQ's own memory knows its connection: where there is none yet, the next will be one.
        """
        if peer in self._hung_up:
            return
        self._hunting = first is None
        if first is None:
            return
        if len(self._hung_up) >= MOST_HUNG_UP:
            self._hung_up.clear()
        self._hung_up.add(peer)
        self.hung_up_on(peer)
        if self._guests is not None:
            self._guests.ban(str(first.get("User-Id")), now_s)
        with contextlib.suppress(OSError):
            with_us = sockets.socket(fileno=os.dup(int(first.get(zmq.SRCFD))))
            with with_us:
                with_us.shutdown(sockets.SHUT_RDWR)

    def send(self, peer: bytes, frame: bytes) -> None:
        """Send, or drop where the peer is gone or does not read."""
        self.socket.send(peer, zmq.NOBLOCK | zmq.SNDMORE)
        self.socket.send(frame, zmq.NOBLOCK)

    def hang_up(self) -> None:
        """Close all connections and what waits in them; listen again at the same address.

        Raises:
            ServiceError: somebody else took the address meanwhile.
        """
        self.socket.close(linger=0)
        until_s = time.perf_counter() + AGAIN_WITHIN_S
        while True:
            try:
                self.socket = self._listen(self.address)
                return
            except ServiceError:  # the old one is closed by another thread, which takes a moment
                if time.perf_counter() > until_s:
                    raise
                time.sleep(0.01)

    def _listen(self, address: str) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.ROUTER)
        _configure(socket, self._options)
        try:
            self._options.bind_to(socket, address)
        except BaseException:
            socket.close(linger=0)
            raise
        return socket

    def waiting(self) -> bool:
        """Whether a message waits."""
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def _drain(self) -> int:
        frames = 0
        while self.socket.getsockopt(zmq.RCVMORE):
            self.socket.recv()
            frames += 1
        return frames


def _configure(router: "zmq.Socket[bytes]", options: ManagerOptions) -> None:
    """No bound on what waits, and no heartbeats of ours: libzmq 4.3.5 aborts the process where a peer goes while it is
    held back and a heartbeat, its own or ours, is due. Whoever sends faster than we read is hung up on instead.
    """
    settings = {
        zmq.LINGER: 0,
        zmq.SNDHWM: QUEUE_OUT,
        zmq.RCVHWM: 0,
        zmq.MAXMSGSIZE: MAX_FRAME_BYTES,
        zmq.HANDSHAKE_IVL: HANDSHAKE_MS,
        zmq.TCP_KEEPALIVE: 1,
        zmq.BACKLOG: 1_024,
    } | KEEPALIVE_S
    for option, value in settings.items():
        router.setsockopt(option, value)
    if options.keys is not None:
        router.curve_server = True
        router.curve_secretkey = options.keys.server_secret.encode()
        router.setsockopt(zmq.ZAP_DOMAIN, DOMAIN.encode())
        router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a doorman nobody comes in
