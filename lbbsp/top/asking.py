"""Asks a manager for what it knows of a job. Joins no job and moves no size.

Knows nothing of how it is shown. Times in seconds.
"""

import os
import time

import zmq

from lbbsp.errors import ConfigError, ServiceError
from lbbsp.protocol import UNREADABLE, Look, Seen, decode_seen, encode
from lbbsp.worker.keyfile import client_curve
from lbbsp.worker.line import CurveKeys, events, open_line, wait_readable

USUAL = "tcp://127.0.0.1:5551"
PATIENCE_S = 3.0


def address_of(argument: str | None) -> str:
    """The argument, else LBBSP_MANAGER, else where `lbbsp manager` listens by default."""
    return argument or os.environ.get("LBBSP_MANAGER") or USUAL


class Asker:
    """A line to one manager.

    Args:
        address: as `tcp://host:port`.
        curve: keys, where the manager demands them; default: those that LBBSP_KEYS names.

    Raises:
        ConfigError: no such address can be.
    """

    def __init__(self, address: str, curve: CurveKeys | None = None) -> None:
        self.address = address
        self._context, self._socket = open_line(address, curve or client_curve())

    def ask(self, look: Look, patience_s: float = PATIENCE_S) -> Seen:
        """The manager's answer.

        Raises:
            ServiceError: none came in time.
        """
        until_s = time.perf_counter() + patience_s
        while events(self._socket) & zmq.POLLIN:
            self._socket.recv_multipart(zmq.NOBLOCK)  # late answers to earlier questions
        if not self._socket.poll(int(1e3 * patience_s), zmq.POLLOUT):
            raise ServiceError(self._nobody(patience_s))
        self._socket.send(encode(look), zmq.NOBLOCK)
        while wait_readable(self._socket, max(0.0, until_s - time.perf_counter())):
            try:
                return decode_seen(self._socket.recv_multipart(zmq.NOBLOCK)[-1])
            except UNREADABLE:
                continue
        raise ServiceError(self._nobody(patience_s))

    def close(self) -> None:
        """End the line."""
        self._context.destroy(linger=0)

    def _nobody(self, patience_s: float) -> str:
        return (
            f"no manager answers at {self.address} in {patience_s:.0f} s: is `lbbsp manager` running there, of this "
            "version, and does LBBSP_KEYS name a key that it knows, if it wants keys? Give --manager tcp://HOST:PORT "
            "or set LBBSP_MANAGER (a job's own manager answers its ranks)"
        )


def the_job(asker: Asker, name: str | None) -> str:
    """The job that is meant: the one named, or the only one.

    Raises:
        ConfigError: there is no such job, or several and none was named.
    """
    jobs = asker.ask(Look()).jobs
    if name is not None and name in jobs:
        return name
    known = ", ".join(jobs[:20]) or "none"
    if name is not None:
        raise ConfigError(f"no job {name!r} at {asker.address}; it has: {known}")
    if len(jobs) != 1:
        raise ConfigError(f"{len(jobs)} jobs at {asker.address}; name one of: {known}")
    return jobs[0]
