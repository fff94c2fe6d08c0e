"""Tokens that lanes show: each good once, one for each peer. No sockets."""

import secrets
from typing import NamedTuple

MOST_TOKENS = 4_096
"""Given out and not shown yet; the oldest is forgotten."""
TOKEN_BYTES = 32


class Speaker(NamedTuple):
    """For whom a lane speaks."""

    peer: bytes
    """As the ROUTER calls the connection of its own."""
    public: str = ""
    """The key of that connection; empty without keys."""


class Tokens:
    """Made with a welcome, spent when a lane comes."""

    def __init__(self) -> None:
        self._given: dict[bytes, tuple[bytes, bytes, str]] = {}
        """Token, answer and key by peer, the oldest first."""
        self._peers: dict[bytes, bytes] = {}

    def make(self, speaker: Speaker) -> tuple[bytes, bytes]:
        """A token for a lane of this speaker and the answer to it; an earlier one of the same peer is void."""
        self.forget(speaker.peer)
        token, answer = secrets.token_bytes(TOKEN_BYTES), secrets.token_bytes(TOKEN_BYTES)
        self._given[speaker.peer] = (token, answer, speaker.public)
        self._peers[token] = speaker.peer
        if len(self._given) > MOST_TOKENS:
            self.forget(next(iter(self._given)))
        return token, answer

    def spend(self, token: bytes) -> tuple[Speaker, bytes] | None:
        """Whose token this is, and the answer; None where it is nobody's, or no more."""
        peer = self._peers.get(token)
        if peer is None:
            return None
        _, answer, public = self._given[peer]
        self.forget(peer)
        return Speaker(peer, public), answer

    def forget(self, peer: bytes) -> None:
        """This peer's token is void."""
        given = self._given.pop(peer, None)
        if given is not None:
            del self._peers[given[0]]
