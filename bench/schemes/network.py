"""What communication costs: a parameter server whose link is shared, or a ring all-reduce.

Knows nothing of gradients. Times in seconds, the model's size in bytes.
"""

from dataclasses import dataclass
from typing import Literal

from bench.schemes.clock import Clock


@dataclass(frozen=True)
class Wire:
    """Links of the job: each message waits latency_s, then takes its bytes over bytes_per_s."""

    latency_s: float = 0.0002
    bytes_per_s: float = 1.25e9
    model_bytes: float = 1e6
    kind: Literal["server", "ring"] = "server"

    @property
    def transfer_s(self) -> float:
        """The whole model over one link, without latency."""
        return self.model_bytes / self.bytes_per_s

    def ring_s(self, workers: int) -> float:
        """Ring all-reduce among equals: 2 (n - 1) steps of 1/n of the model each."""
        return 2 * (workers - 1) * (self.latency_s + self.transfer_s / workers)

    def exchange_s(self, neighbours: int) -> float:
        """One worker's model to each neighbour over its one link."""
        return self.latency_s + neighbours * self.transfer_s if neighbours else 0.0


class Server:
    """A parameter server: what comes in shares one link, first come, first served; so does what goes out."""

    def __init__(self, wire: Wire, clock: Clock) -> None:
        self._wire, self._clock = wire, clock
        self._in_free_s = self._out_free_s = 0.0

    def push_s(self) -> float:
        """When a gradient that a worker sends now has come in."""
        self._in_free_s = max(self._in_free_s, self._clock.now_s + self._wire.latency_s) + self._wire.transfer_s
        return self._in_free_s

    def pull_s(self) -> float:
        """When a worker that asks now has the parameters."""
        self._out_free_s = max(self._out_free_s, self._clock.now_s) + self._wire.transfer_s
        return self._out_free_s + self._wire.latency_s
