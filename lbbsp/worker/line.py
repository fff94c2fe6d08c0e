"""The ZeroMQ line under the client: a DEALER that never queues while unconnected, and its keys.

Knows nothing of messages. Reconnects by itself, each time under a new identity that the manager's
ROUTER gives.
"""

import math
import select
import time

import msgspec
import zmq

from lbbsp.errors import ConfigError
from lbbsp.prompt import prompt_threads

MAX_FRAME_BYTES = 2 * 2**20
"""A plan for 65,536 ranks fits."""
QUEUE_MESSAGES = 256
SELECT_LIMIT = 1024
"""select() can't watch file descriptors from here on."""
RECONNECT_MS = (20, 500)
HEARTBEAT_MS = 2_000
LOST_AFTER_MS = 5_000


class CurveKeys(msgspec.Struct, frozen=True, kw_only=True):
    """What a client needs to talk to a manager that demands CURVE: Z85 text, 40 characters each."""

    server_public: str
    client_public: str
    client_secret: str

    def __repr__(self) -> str:
        return f"CurveKeys(server_public={self.server_public!r}, client_public={self.client_public!r})"


def open_line(address: str, curve: CurveKeys | None) -> tuple[zmq.Context[zmq.Socket[bytes]], zmq.Socket[bytes]]:
    """A context of its own and a DEALER that is connecting to address.

    Raises:
        ConfigError: the address is no address.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with prompt_threads():  # ZeroMQ makes its threads with the first socket
        socket = context.socket(zmq.DEALER)
    try:
        _configure(socket, curve)
        socket.setsockopt(zmq.IPV6, int("[" in address))
        socket.connect(address)
    except (zmq.ZMQError, ValueError) as error:
        context.destroy(linger=0)
        raise ConfigError(
            f"cannot connect to a manager at {address!r} ({error}): give tcp://HOST:PORT, as `lbbsp manager` prints it"
        ) from error
    return context, socket


def _configure(socket: zmq.Socket[bytes], curve: CurveKeys | None) -> None:
    options = {
        zmq.IMMEDIATE: 1,
        zmq.LINGER: 0,
        zmq.SNDHWM: QUEUE_MESSAGES,
        zmq.RCVHWM: 0,  # no bound: at one, a heartbeat that falls due after a hang-up aborts us (libzmq 4.3.5)
        zmq.MAXMSGSIZE: MAX_FRAME_BYTES,
        zmq.RECONNECT_IVL: RECONNECT_MS[0],
        zmq.RECONNECT_IVL_MAX: RECONNECT_MS[1],
        zmq.CONNECT_TIMEOUT: LOST_AFTER_MS,
        zmq.HANDSHAKE_IVL: LOST_AFTER_MS,
        zmq.HEARTBEAT_IVL: HEARTBEAT_MS,
        zmq.HEARTBEAT_TIMEOUT: LOST_AFTER_MS,
        zmq.HEARTBEAT_TTL: 2 * LOST_AFTER_MS,
    }
    for option, value in options.items():
        socket.setsockopt(option, value)
    if curve is not None:
        socket.curve_serverkey = curve.server_public.encode()
        socket.curve_publickey = curve.client_public.encode()
        socket.curve_secretkey = curve.client_secret.encode()


def events(socket: zmq.Socket[bytes]) -> int:
    """Which of POLLIN and POLLOUT hold now; also lets ZeroMQ take in what its thread has to say."""
    return int(socket.getsockopt(zmq.EVENTS))


def wait_readable(socket: zmq.Socket[bytes], timeout_s: float, lane: int = -1) -> bool:
    """Wait for a message, there or in a lane's descriptor; finer than a millisecond where select() can."""
    deadline_s = time.perf_counter() + timeout_s
    descriptors = [int(socket.getsockopt(zmq.FD)), *([lane] if lane >= 0 else [])]
    while not events(socket) & zmq.POLLIN:
        left_s = deadline_s - time.perf_counter()
        if left_s <= 0:
            return False
        if max(descriptors) >= SELECT_LIMIT:
            socket.poll(math.ceil(left_s * 1e3))
        elif lane in select.select(descriptors, [], [], left_s)[0]:
            break
    return True
