"""The manager's side of lanes: frames of ranks on this machine, past ZeroMQ's threads (worker/lane.py is theirs).

A lane speaks for one ZeroMQ peer and the caller behind it, as the token says that this peer was given with its welcome;
what comes through is then checked like any other frame. Only processes of our own user are let in. Linux alone.
"""

import contextlib
import logging
import os
import secrets
import select
import socket
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from lbbsp.service.keys import Caller
from lbbsp.service.router import MAX_FRAME_BYTES
from lbbsp.worker.lane import user_at

log = logging.getLogger(__name__)

MOST_LANES = 1_024
MOST_UNNAMED = 64
"""Lanes that have not shown their token; the oldest gives way."""
MOST_TOKENS = 4_096
ACCEPTED_A_TURN = 8
FRAMES_A_TURN = 64
"""Of one lane; the rest waits, so that one can't keep the others waiting."""
TOKEN_BYTES = 32


class Speaker(NamedTuple):
    """For whom a lane speaks."""

    peer: bytes
    """As the ROUTER calls the connection of its own."""
    caller: Caller


class Lane:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.speaker: Speaker | None = None


class Lanes:
    """Listens when made; fileno() is readable when there is something to receive.

    Raises:
        OSError: this system has no such sockets.
    """

    def __init__(self) -> None:
        self.name = f"lbbsp-{secrets.token_hex(16)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        self._listener.bind("\0" + self.name)
        self._listener.listen(MOST_LANES)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._tokens: dict[bytes, Speaker] = {}
        self._lanes: dict[int, Lane] = {}
        self._unnamed: dict[int, None] = {}
        self._of: dict[bytes, Lane] = {}

    def fileno(self) -> int:
        """For a poller."""
        return self._epoll.fileno()

    def __len__(self) -> int:
        return len(self._of)

    def offer(self, peer: bytes, caller: Caller) -> bytes:
        """A token, good once, for a lane that speaks for this peer."""
        token = secrets.token_bytes(TOKEN_BYTES)
        self._tokens[token] = Speaker(peer, caller)
        if len(self._tokens) > MOST_TOKENS:
            del self._tokens[next(iter(self._tokens))]
        return token

    def waiting(self) -> bool:
        """Whether there is something to receive."""
        return bool(self._epoll.poll(0, 1))

    def receive(self) -> Iterator[tuple[Speaker, bytes]]:
        """What has come, with who speaks."""
        for descriptor, _ in self._epoll.poll(0):
            if descriptor == self._listener.fileno():
                self._accept()
                continue
            for _ in range(FRAMES_A_TURN):
                lane = self._lanes.get(descriptor)
                frame = None if lane is None else self._read(lane)
                if lane is None or frame is None:
                    break
                if lane.speaker is None:
                    self._name(lane, frame)
                else:
                    yield lane.speaker, frame

    def send(self, peer: bytes, frame: bytes) -> bool:
        """Whether it went; False where this peer has no lane, and from then on where it did not take this."""
        lane = self._of.get(peer)
        if lane is None:
            return False
        try:
            return lane.connection.send(frame, socket.MSG_NOSIGNAL) == len(frame)
        except OSError as error:
            log.debug("a lane is closed: %s", error)
            self._close(lane)
            return False

    def close_of(self, peer: bytes) -> None:
        """This peer has no lane any more."""
        if peer in self._of:
            self._close(self._of[peer])

    def keep(self, known: Callable[[Caller], bool]) -> None:
        """Close the lanes of callers that are known no more."""
        for lane in list(self._of.values()):
            if lane.speaker is not None and not known(lane.speaker.caller):
                self._close(lane)
        self._tokens = {token: speaker for token, speaker in self._tokens.items() if known(speaker.caller)}

    def close_all(self) -> None:
        """All hang up; new ones may come."""
        for lane in list(self._lanes.values()):
            self._close(lane)
        self._tokens.clear()

    def close(self) -> None:
        """Hang up and listen no more."""
        self.close_all()
        self._epoll.close()
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_A_TURN):
            try:
                connection, _ = self._listener.accept()
            except OSError:  # nobody knocks, has gone again, or there are no more files to be had
                return
            if user_at(connection) != os.getuid() or len(self._lanes) >= MOST_LANES:
                connection.close()
                continue
            connection.setblocking(False)
            self._lanes[connection.fileno()] = Lane(connection)
            self._unnamed[connection.fileno()] = None
            self._epoll.register(connection, select.EPOLLIN)
            if len(self._unnamed) > MOST_UNNAMED:
                self._close(self._lanes[next(iter(self._unnamed))])

    def _read(self, lane: Lane) -> bytes | None:
        """Its next frame; None where none is there. One that has hung up is closed."""
        for _ in range(2):  # the first error may be of replies that were not read; what was sent before is there still
            try:
                frame = lane.connection.recv(MAX_FRAME_BYTES + 1)
            except BlockingIOError:
                return None
            except OSError:
                continue
            if frame:
                return frame
            break
        self._close(lane)
        return None

    def _name(self, lane: Lane, token: bytes) -> None:
        speaker = self._tokens.pop(token, None)
        if speaker is None:
            self._close(lane)
            return
        self.close_of(speaker.peer)
        del self._unnamed[lane.connection.fileno()]
        lane.speaker = speaker
        self._of[speaker.peer] = lane

    def _close(self, lane: Lane) -> None:
        descriptor = lane.connection.fileno()
        self._epoll.unregister(descriptor)
        del self._lanes[descriptor]
        self._unnamed.pop(descriptor, None)
        if lane.speaker is not None and self._of.get(lane.speaker.peer) is lane:
            del self._of[lane.speaker.peer]
        with contextlib.suppress(OSError):
            lane.connection.shutdown(socket.SHUT_RDWR)
        lane.connection.close()


def listen() -> Lanes | None:
    """Lanes, where this system has such sockets."""
    if sys.platform != "linux":
        return None
    try:
        return Lanes()
    except OSError as error:
        log.warning("no lanes for ranks on this machine (%s): they use ZeroMQ like all others", error)
        return None
