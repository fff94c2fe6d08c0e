"""A worker's lane to a manager on the same machine: packets through the kernel, with no thread between.

ZeroMQ hands each message to a thread of its own. On a core that others use too, waking it costs the training thread
tens of microseconds, and now and then the core itself for milliseconds. Where there is no lane, or it breaks, all goes
by ZeroMQ. Knows nothing of messages.
"""

import logging
import os
import socket
import struct
import sys

log = logging.getLogger(__name__)

CREDENTIALS = struct.Struct("3i")
"""struct ucred: process, user, group."""


def user_at(other_end: socket.socket) -> int:
    """The user who runs the process at the other end; -1 where the kernel does not tell."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return -1
    return int(CREDENTIALS.unpack(other_end.getsockopt(socket.SOL_SOCKET, option, CREDENTIALS.size))[1])


class Lane:
    """Open when made.

    Args:
        name: of the manager's socket, in the abstract namespace of this machine.
        token: shows the manager whose lane it is.
        most_bytes: no frame of the manager's is longer.

    Raises:
        OSError: nobody of ours listens there, or not now.
    """

    def __init__(self, name: str, token: bytes, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.setblocking(False)
            self._socket.connect("\0" + name)
            if user_at(self._socket) != os.getuid():
                raise PermissionError(f"the lane {name!r} is another user's")
            self._socket.send(token)
        except OSError:
            self._socket.close()
            raise

    @property
    def descriptor(self) -> int:
        """To wait for frames with."""
        return self._socket.fileno()

    def send(self, frame: bytes) -> bool:
        """Whether it could be sent now."""
        try:
            return self._socket.send(frame, socket.MSG_NOSIGNAL) == len(frame)
        except OSError:
            return False

    def receive(self) -> bytes | None:
        """The next frame; None where none has come; empty where none will come any more."""
        try:
            return self._socket.recv(self._most_bytes)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def close(self) -> None:
        """Hang up, for processes forked from this one too."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            log.debug("the other end of the lane was closed before")
        self._socket.close()


def open_lane(name: str, token: bytes, most_bytes: int) -> Lane | None:
    """A lane, where the manager is on this machine and its user is ours."""
    if not name or sys.platform != "linux":
        return None
    try:
        return Lane(name, token, most_bytes)
    except OSError as error:
        log.debug("no lane to the manager: %s", error)
        return None
