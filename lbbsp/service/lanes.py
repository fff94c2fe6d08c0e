"""The manager's side of lanes: reports of ranks on this machine and plans for them, past ZeroMQ's threads.

A lane speaks for one ZeroMQ peer, the one that was given its token with a welcome; what comes through is checked like
any other frame of that peer. Only processes of our own user are let in. Whatever goes wrong, ZeroMQ is still there:
a lane is then left half open, so that what its rank has sent is still heard. Linux alone.
"""

import contextlib
import logging
import os
import resource
import secrets
import select
import socket
import sys
from collections.abc import Iterator

from lbbsp.service.lane_tokens import Speaker, Tokens
from lbbsp.service.router import MAX_FRAME_BYTES
from lbbsp.worker.lane import Invitation, user_at

log = logging.getLogger(__name__)

MOST_LANES = 1_024
FILES_SHARE = 4
"""Lanes take one in so many of the files that this process may open: ZeroMQ's connections need the rest."""
MOST_UNNAMED = 64
"""Lanes that have not shown their token; the oldest gives way."""
ACCEPTED_A_TURN = 8
TURNED_AWAY_A_TICK = 256
"""Knocks of other users, or too many, until it rests; what they leave waiting keeps our own ranks out."""


class _Lane:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.speaker: Speaker | None = None
        self.looked_at = False
        """In a tick, while it had not shown its token."""


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
        self._listening = False
        self._turned_away = 0
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = MOST_LANES if files == resource.RLIM_INFINITY else min(MOST_LANES, files // FILES_SHARE)
        self._epoll = select.epoll()
        self._tokens = Tokens()
        self._lanes: dict[int, _Lane] = {}
        self._unnamed: dict[int, None] = {}
        self._of: dict[bytes, _Lane] = {}
        self._listen(True)

    def fileno(self) -> int:
        """For a poller."""
        return self._epoll.fileno()

    def __len__(self) -> int:
        """Lanes that plans go through."""
        return len(self._of)

    def invite(self, speaker: Speaker) -> Invitation:
        """What a lane that is to speak for this one must show, and what it will be shown."""
        token, answer = self._tokens.make(speaker)
        return Invitation(self.name, token, answer)

    def waiting(self) -> bool:
        """Whether there is something to receive."""
        return bool(self._epoll.poll(0, 1))

    def round(self) -> Iterator[tuple[Speaker, bytes]]:
        """One frame of each lane that has any, so that no rank's news overtake another's by more than need be."""
        for descriptor, _ in self._epoll.poll(0):
            if descriptor == self._listener.fileno():
                self._accept()
                continue
            lane = self._lanes.get(descriptor)
            frame = None if lane is None else self._read(lane)
            if lane is None or frame is None:
                continue
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
            log.debug("a lane takes no more: %s", error)
            self.end(peer)
            return False

    def end(self, peer: bytes) -> None:
        """This peer gets no more through its lane, and learns so; what it has sent is heard."""
        lane = self._of.pop(peer, None)
        if lane is not None:
            with contextlib.suppress(OSError):
                lane.connection.shutdown(socket.SHUT_WR)

    def bar(self, peer: bytes) -> None:
        """This peer has no lane any more and gets none."""
        self._tokens.forget(peer)
        for lane in [lane for lane in self._lanes.values() if lane.speaker is not None and lane.speaker.peer == peer]:
            self._close(lane)

    def tick(self) -> None:
        """About once a second: listen again where that had to rest; who has shown no token since the last is closed."""
        self._turned_away = 0
        self._listen(True)
        for descriptor in list(self._unnamed):
            lane = self._lanes[descriptor]
            if lane.looked_at:
                self._close(lane)
            lane.looked_at = True

    def close_all(self) -> None:
        """All are hung up on; new ones may come."""
        for lane in list(self._lanes.values()):
            self._close(lane)
        self._tokens = Tokens()

    def close(self) -> None:
        """Hang up and listen no more."""
        self.close_all()
        self._listen(False)
        self._epoll.close()
        self._listener.close()

    def _listen(self, on: bool) -> None:
        if on and not self._listening:
            self._epoll.register(self._listener, select.EPOLLIN)
        elif self._listening and not on:
            self._epoll.unregister(self._listener)
        self._listening = on

    def _accept(self) -> None:
        for _ in range(ACCEPTED_A_TURN):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # no more files, say: who knocks would keep us awake
                log.warning("no lanes for a moment: %s", error)
                self._listen(False)
                return
            if user_at(connection) == os.geteuid() and len(self._lanes) < self._most:
                self._take_in(connection)
                continue
            connection.close()
            self._turned_away += 1
            if self._turned_away >= TURNED_AWAY_A_TICK:
                self._listen(False)
                return

    def _take_in(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        lane = self._lanes[connection.fileno()] = _Lane(connection)
        self._unnamed[connection.fileno()] = None
        self._epoll.register(connection, select.EPOLLIN)
        token = self._read(lane)
        if token is not None:
            self._name(lane, token)
        if len(self._unnamed) > MOST_UNNAMED:
            self._close(self._lanes[next(iter(self._unnamed))])

    def _read(self, lane: _Lane) -> bytes | None:
        """Its next frame; None where none is there. One that has hung up, or sends giants, is closed."""
        for _ in range(2):  # the first error may be of plans that were not read; what was sent before is there still
            try:
                frame = lane.connection.recv(MAX_FRAME_BYTES + 1)
            except BlockingIOError:
                return None
            except OSError:
                continue
            if 0 < len(frame) <= MAX_FRAME_BYTES:
                return frame
            break
        self._close(lane)
        return None

    def _name(self, lane: _Lane, token: bytes) -> None:
        """The newest lane of a peer is the one that plans go through."""
        known = self._tokens.spend(token)
        if known is None:
            self._close(lane)
            return
        speaker, answer = known
        self.end(speaker.peer)
        del self._unnamed[lane.connection.fileno()]
        lane.speaker = speaker
        self._of[speaker.peer] = lane
        self.send(speaker.peer, answer)

    def _close(self, lane: _Lane) -> None:
        descriptor = lane.connection.fileno()
        self._epoll.unregister(descriptor)
        del self._lanes[descriptor]
        self._unnamed.pop(descriptor, None)
        if lane.speaker is not None and self._of.get(lane.speaker.peer) is lane:
            del self._of[lane.speaker.peer]
        with contextlib.suppress(OSError):
            lane.connection.shutdown(socket.SHUT_RDWR)
        lane.connection.close()


def open_lanes() -> Lanes | None:
    """Lanes, where this system has such sockets."""
    if sys.platform != "linux":
        return None
    try:
        return Lanes()
    except OSError as error:
        log.warning("no lanes for ranks on this machine (%s): they use ZeroMQ like all others", error)
        return None
