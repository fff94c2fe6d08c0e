"""Who may connect where CURVE keys are demanded: pyzmq's ZAP authenticator, answered in the daemon's poll loop.

Which of the jobs a caller may speak for is asked here frame by frame, by the key of the connection that the frame
came through. Keys are Z85 text.
"""

import logging
import time
from pathlib import Path

import zmq
from zmq.auth import Authenticator

from lbbsp.errors import ConfigError
from lbbsp.service.keys import Caller, read_clients

DOMAIN = "lbbsp"
BAN_S = 10.0
"""Whose connection floods is not let in again for so long."""
log = logging.getLogger(__name__)


class Guests:
    """Who is let in, by public key.

    Args:
        callers: at first.
        folder: re-read where it has changed; None: they stay.
    """

    def __init__(self, callers: dict[str, Caller], folder: Path | None = None) -> None:
        self._callers = callers
        self._folder = folder
        self._seen = self._stamp()
        self._banned_s: dict[str, float] = {}

    @property
    def all_may_all(self) -> bool:
        """No caller is bound to a job, and that can't change: frames need no look at their key."""
        return self._folder is None and all(caller.job == "*" for caller in self._callers.values())

    def get(self, public: str) -> Caller | None:
        """Whose key this is, if anybody's."""
        return self._callers.get(public)

    def ban(self, public: str, now_s: float) -> None:
        """Let nobody in by this key for a while; who is in stays."""
        self._banned_s[public] = now_s + BAN_S

    def welcome(self, public: str, now_s: float) -> bool:
        """Whether this key opens the door now."""
        return public in self._callers and now_s >= self._banned_s.get(public, now_s)

    def refresh(self) -> None:
        """Take up added and deleted clients; where the folder can't be read, those before stay."""
        stamp = self._stamp()
        if self._folder is None or stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._callers = read_clients(self._folder)
        except ConfigError as error:
            log.error("clients stay as they were: %s", error)
            return
        self._banned_s = {public: until_s for public, until_s in self._banned_s.items() if public in self._callers}
        log.info("%d clients may come in", len(self._callers))

    def _stamp(self) -> tuple[tuple[str, int], ...]:
        if self._folder is None:
            return ()
        paths = sorted((self._folder / "clients").glob("*.toml"))
        return tuple((path.name, path.stat().st_mtime_ns) for path in paths)


class Doorman:
    """Answers whether a key is known.

    Raises:
        zmq.ZMQError: the context has a doorman already.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", guests: Guests) -> None:
        self.turned_away = 0
        self._guests = guests
        self._authenticator = Authenticator(context)
        self._authenticator.configure_curve_callback(DOMAIN, self)
        self._authenticator.start()

    @property
    def socket(self) -> "zmq.Socket[bytes]":
        """Readable where somebody knocks."""
        return self._authenticator.zap_socket

    def answer(self) -> None:
        """Answer one knock that has come in."""
        answering = self._authenticator.handle_zap_message(self.socket.recv_multipart())
        try:
            answering.send(None)  # our callback waits for nothing, so it ends here
        except StopIteration:
            return
        raise RuntimeError("the authenticator waits for something")

    def callback(self, domain: str, key: bytes) -> bool:
        """Asked by the authenticator."""
        del domain
        public = key.decode()
        if self._guests.get(public) is None:
            self._guests.refresh()
        known = self._guests.welcome(public, time.perf_counter())
        self.turned_away += not known
        return known
