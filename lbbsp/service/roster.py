"""The hellos of one incarnation: who is there, through which peer, and who agrees with rank 0.

No sockets, no clock. A hello that disagrees stays: rank 0 may speak again and then agree with it.
"""

from lbbsp.protocol import Hello
from lbbsp.service.agreement import disagreement


class Roster:
    """Ranks of one incarnation as they say hello, in any order, again if they like."""

    def __init__(self, sensors_every: int = 1, together: int = 1) -> None:
        self.sensors_every = sensors_every
        """Iterations between readings of sensors that the job's ranks are asked for."""
        self.together = together
        """Iterations that they may tell of in one report."""
        self.hellos: dict[int, Hello] = {}
        self.peers: dict[int, bytes] = {}
        self.impossible: str | None = None
        """Why no plan can exist though all agree."""
        self._agreed: set[int] = set()

    @property
    def complete(self) -> bool:
        """All ranks of rank 0's world are here and agree."""
        return 0 in self.hellos and len(self._agreed) == self.hellos[0].world_size

    def add(self, hello: Hello, peer: bytes) -> bool:
        """Take a hello; True where it says something else than this rank said before."""
        changed = self.hellos.get(hello.rank) != hello
        if changed:
            self.impossible = None
        self.hellos[hello.rank] = hello
        self.peers[hello.rank] = peer
        return changed

    def judge(self, rank: int) -> str | None:
        """What this rank disagrees about; None while rank 0 is not there or where all agree."""
        if 0 not in self.hellos or self.impossible:
            return self.impossible
        reason = disagreement(self.hellos[rank], self.hellos[0])
        if reason is None:
            self._agreed.add(rank)
        else:
            self._agreed.discard(rank)
        return reason

    def remove(self, rank: int) -> None:
        """This rank said bye."""
        self.hellos.pop(rank, None)
        self.peers.pop(rank, None)
        self._agreed.discard(rank)
