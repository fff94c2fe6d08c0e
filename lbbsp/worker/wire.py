"""Rank 0's broadcasts over plain TCP, for frameworks without an asynchronous broadcast of their own.

A Hub at rank 0, a Spoke at each other rank; one fixed-length int64 array a broadcast, in order, never lost while the
connection stands. The kernel's buffers hold what a rank has not asked for yet, so that the hub waits for nobody and
the others post nothing. Knows nothing of plans. Seconds.
"""

import contextlib
import hmac
import secrets
import socket
import time
from collections.abc import Callable

import numpy as np

from lbbsp.worker.vector import IntArray

MEET_TIMEOUT_S = 60.0
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A host that lost power is noticed after some 25 s."""
TOKEN_BYTES = 32
RANK_BYTES = 4


class Hub:
    """Rank 0: listens, takes in the others, sends to all.

    Args:
        host: the address of this host that the others reach.
    """

    def __init__(self, host: str) -> None:
        self.token = secrets.token_bytes(TOKEN_BYTES)
        """What the others show, so that no stranger listens in."""
        self._listener = _listen(host)
        self.port: int = self._listener.getsockname()[1]
        self._peers: dict[int, socket.socket] = {}

    def meet(self, world_size: int, timeout_s: float = MEET_TIMEOUT_S) -> None:
        """Take in ranks 1 .. world_size - 1; then listen no more.

        Raises:
            TimeoutError: one did not come.
        """
        until_s = time.perf_counter() + timeout_s
        with self._listener:
            while len(self._peers) < world_size - 1:
                self._listener.settimeout(max(1e-3, until_s - time.perf_counter()))
                peer, _ = self._listener.accept()
                self._take(peer, world_size)

    def send(self, payload: IntArray) -> None:
        """Broadcast; returns when the kernel has it all.

        Raises:
            OSError: a peer is gone.
        """
        data = payload.tobytes()
        for peer in self._peers.values():
            peer.sendall(data)

    def close(self) -> None:
        """Hang up."""
        for peer in self._peers.values():
            peer.close()

    def _take(self, peer: socket.socket, world_size: int) -> None:
        """Keep a caller that shows the token and a rank that is not there yet; hang up on any other."""
        peer.settimeout(5.0)
        try:
            shown = _exactly(peer, TOKEN_BYTES + RANK_BYTES)
        except OSError:
            peer.close()
            return
        rank = int.from_bytes(shown[TOKEN_BYTES:])
        known = hmac.compare_digest(shown[:TOKEN_BYTES], self.token)
        if not known or not 0 < rank < world_size or rank in self._peers:
            peer.close()
            return
        _keep_alive(peer)
        self._peers[rank] = peer


class Spoke:
    """A rank other than 0.

    Raises:
        OSError: rank 0 can't be reached.
    """

    def __init__(self, host: str, port: int, token: bytes, rank: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=MEET_TIMEOUT_S)
        _keep_alive(self._socket)
        self._socket.sendall(token + rank.to_bytes(RANK_BYTES))

    def receive(self, entries: int) -> Callable[[], IntArray]:
        """What is returned waits for the next broadcast and raises OSError where rank 0 is gone."""
        return lambda: np.frombuffer(_exactly(self._socket, 8 * entries), dtype=np.int64)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def _listen(host: str) -> socket.socket:
    """On this address, or on all of this host where it has no such address (behind a translation, say)."""
    for place in (host, ""):
        with contextlib.suppress(OSError):
            family = socket.AF_INET6 if ":" in place else socket.AF_INET
            return socket.create_server((place, 0), family=family)
    return socket.create_server(("", 0))


def _keep_alive(line: socket.socket) -> None:
    line.settimeout(None)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _exactly(line: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = line.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the peer has hung up")
        data += part
    return bytes(data)
