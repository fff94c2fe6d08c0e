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
import weakref
from typing import NamedTuple

log = logging.getLogger(__name__)

_CREDENTIALS = struct.Struct("3i")
"""struct ucred: process, user, group."""
_ours: "weakref.WeakSet[Lane]" = weakref.WeakSet()
"""The lanes of this process, which a forked child must not speak through."""


class Invitation(NamedTuple):
    """What the manager's welcome says of the lane."""

    name: str
    """Of its socket, in this machine's abstract namespace."""
    token: bytes
    """Shows the manager whose lane it is."""
    answer: bytes
    """Shows the worker that it has reached this manager, and that the lane is open."""


class Lane:
    """Asked for when made, open when the manager has answered.

    Args:
        invitation: of the manager.
        most_bytes: no frame of the manager's is longer.

    Raises:
        OSError: nobody of our own user listens there, or not now.
    """

    def __init__(self, invitation: Invitation, most_bytes: int) -> None:
        self.open = False
        """Whether the manager has answered."""
        self._answer, self._most_bytes = invitation.answer, most_bytes
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.setblocking(False)
            self._socket.connect("\0" + invitation.name)
            if user_at(self._socket) != os.geteuid():
                raise PermissionError(f"the lane {invitation.name!r} is another user's")
            self._socket.send(invitation.token, socket.MSG_NOSIGNAL)
        except OSError:
            self._socket.close()
            raise
        _ours.add(self)

    @property
    def descriptor(self) -> int:
        """To wait for frames with; -1 once closed."""
        return self._socket.fileno()

    def send(self, frame: bytes) -> bool:
        """Whether it could be sent now."""
        try:
            return self._socket.send(frame, socket.MSG_NOSIGNAL) == len(frame)
        except OSError:
            return False

    def receive(self) -> bytes | None:
        """The next frame; None where none has come; empty where none will come any more."""
        frame = self._receive()
        if self.open or not frame:
            return frame
        if frame != self._answer:
            return b""
        self.open = True
        return self._receive()

    def _receive(self) -> bytes | None:
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

    def leave(self) -> None:
        """Close it in this process alone."""
        self._socket.close()


def user_at(other_end: socket.socket) -> int:
    """The user who runs the process at the other end; -1 where the kernel does not tell."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return -1
    return int(_CREDENTIALS.unpack(other_end.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))[1])


def open_lane(invitation: Invitation, most_bytes: int) -> Lane | None:
    """A lane, where the manager is on this machine and its user is ours."""
    if not invitation.name or sys.platform != "linux":
        return None
    try:
        return Lane(invitation, most_bytes)
    except OSError as error:
        log.debug("no lane to the manager: %s", error)
        return None


def _leave_all() -> None:
    for lane in list(_ours):
        lane.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all)
