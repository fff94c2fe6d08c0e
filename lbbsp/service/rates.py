"""A token bucket for each connection, so that one that floods is found. Pure; seconds and messages.

An entry is the moment at which its bucket is full again; one whose moment has passed is as good as none.
"""

MOST_PEERS = 131_072
"""Buckets kept; peers beyond share one."""
BURST_S = 2.0
"""A full bucket holds what may be sent in this time."""
SWEEP_EVERY_S = 1.0


class Rates:
    """The buckets.

    Args:
        per_s: messages a second that a connection may send for long.
    """

    def __init__(self, per_s: float) -> None:
        self._cost_s = 1.0 / per_s
        self._full_s: dict[bytes, float] = {}
        self._swept_s = float("-inf")

    def spend(self, peer: bytes, now_s: float, messages: int = 1) -> bool:
        """So much came of this peer; False where it is too much."""
        full_s = self._full_s.get(peer)
        if full_s is None and len(self._full_s) >= MOST_PEERS:
            self._sweep(now_s)
            if len(self._full_s) >= MOST_PEERS:
                peer = b""
                full_s = self._full_s.get(peer)
        full_s = (now_s if full_s is None or full_s < now_s else full_s) + messages * self._cost_s
        if full_s > now_s + BURST_S:
            return False
        self._full_s[peer] = full_s
        return True

    def _sweep(self, now_s: float) -> None:
        if now_s - self._swept_s >= SWEEP_EVERY_S:
            self._swept_s = now_s
            self._full_s = {peer: full_s for peer, full_s in self._full_s.items() if full_s > now_s}
