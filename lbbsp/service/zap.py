"""Who may connect where CURVE keys are demanded: ZeroMQ's ZAP (RFC 27) answered in the daemon's poll loop.

Knows nothing of jobs. Keys are Z85 text.
"""

import zmq
from zmq.utils import z85

ENDPOINT = "inproc://zeromq.zap.01"


class Doorman:
    """Lets in the clients whose public keys are listed.

    Raises:
        zmq.ZMQError: the context has a doorman already.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", allowed: frozenset[str]) -> None:
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(ENDPOINT)
        self.turned_away = 0
        self._allowed = allowed

    def answer(self) -> None:
        """Answer one request that has come in."""
        frames = self.socket.recv_multipart()
        version, request, mechanism = frames[0], frames[1], frames[5]
        known = mechanism == b"CURVE" and z85.encode(frames[6]).decode() in self._allowed
        self.turned_away += not known
        status = (b"200", b"OK") if known else (b"400", b"unknown key")
        self.socket.send_multipart([version, request, *status, b"", b""])
