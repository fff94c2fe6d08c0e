"""The manager's ROUTER: what came, who speaks, and whether it is too much; replies out.

Bounds what a peer can make us hold: the size of a frame, frames that wait, time to shake hands, messages a second.
Knows nothing of jobs. Seconds, bytes.
"""

import time
from typing import NamedTuple

import zmq

from lbbsp.errors import ServiceError
from lbbsp.protocol import encode
from lbbsp.service.job import Reply
from lbbsp.service.keys import ANYBODY, Caller
from lbbsp.service.options import ManagerOptions
from lbbsp.service.rates import Rates
from lbbsp.service.rejections import Rejections
from lbbsp.service.zap import DOMAIN

MAX_FRAME_BYTES = 16_384
"""The longest hello has about 4 KiB; who sends more is hung up on."""
QUEUE_IN, QUEUE_OUT = 128, 1_000
"""Messages of one peer that wait; then TCP holds it back, and replies to it are dropped."""
HANDSHAKE_MS = 5_000
AGAIN_WITHIN_S = 5.0
KEEPALIVE_S = {zmq.TCP_KEEPALIVE_IDLE: 10, zmq.TCP_KEEPALIVE_INTVL: 5, zmq.TCP_KEEPALIVE_CNT: 3}
"""A host that lost power is noticed after some 25 s, and sooner by its heartbeats, which say how long they hold. No
heartbeats of ours: a due one aborts the process where the peer has gone while its messages waited (libzmq 4.3.5)."""


class Incoming(NamedTuple):
    """One message that may be looked at."""

    peer: bytes
    frame: bytes
    at_s: float
    caller: Caller


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
        keys = options.keys
        self._guests = None if keys is None or keys.guests.all_may_all else keys.guests
        self.socket = self._listen(options.bind)
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def receive(self, now_s: float) -> Incoming | None:
        """The next message; None where one came that is dropped.

        Raises:
            zmq.Again: there is none.
        """
        caller: Caller | None = ANYBODY
        if self._guests is None:
            peer = self.socket.recv(zmq.NOBLOCK)
        else:
            first = self.socket.recv(zmq.NOBLOCK, copy=False)
            peer, caller = first.bytes, self._guests.get(str(first.get("User-Id")))
        frame = self.socket.recv()
        if self.socket.getsockopt(zmq.RCVMORE):
            self._rejections.add("", "malformed", f"{1 + self._drain()} frames came, one was wanted")
            return None
        if caller is None:
            self._rejections.add("", "key taken away", "its key is listed no more")
            return None
        if not self._rates.spend(peer, now_s):
            self._rejections.add("", "too fast", "a peer sends more than --max-rate messages a second")
            return None
        return Incoming(peer, frame, now_s, caller)

    def send(self, reply: Reply) -> None:
        """Send, or drop where the peer is gone or does not read."""
        self.socket.send(reply[0], zmq.NOBLOCK | zmq.SNDMORE)
        self.socket.send(encode(reply[1]), zmq.NOBLOCK)

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
    settings = {
        zmq.LINGER: 0,
        zmq.SNDHWM: QUEUE_OUT,
        zmq.RCVHWM: QUEUE_IN,
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
