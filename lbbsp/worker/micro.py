"""What a micro-batch costs beside its samples: from iterations in which one rank worked micro-batches of several sizes.

Within an iteration the largest one tells the time of a sample, the others what is above that. The median over many
iterations counts, since speeds change within iterations too. Pure; sizes in samples, times in seconds.
"""

from collections import deque
from statistics import median

REMEMBERED = 32
LEAST_KNOWN = 4
TELLING = 2.0
"""The largest micro-batch must be so many times the mean of the others."""


class MicroCost:
    """One rank's account."""

    def __init__(self) -> None:
        self.sample_s = 0.0
        """Time of a sample in the newest micro-batch; 0 before any."""
        self._pieces: list[tuple[int, float]] = []
        self._fixed_s: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def fixed_s(self) -> float:
        """What each micro-batch costs, at least a microsecond; 0 while that is not known."""
        return max(1e-6, median(self._fixed_s)) if len(self._fixed_s) >= LEAST_KNOWN else 0.0

    def worked(self, samples: int, time_s: float, waited_s: float = 0.0) -> None:
        """A micro-batch has been worked, after a wait for its claim, which is a cost of it too."""
        if samples > 0:
            self.sample_s = time_s / samples
            self._pieces.append((samples, time_s + waited_s))

    def end(self) -> None:
        """The iteration has ended."""
        pieces, self._pieces = sorted(self._pieces), []
        if len(pieces) < 2:
            return
        (*others, (most, most_s)) = pieces
        mean = sum(samples for samples, _ in others) / len(others)
        mean_s = sum(time_s for _, time_s in others) / len(others)
        if most >= TELLING * mean:
            self._fixed_s.append(mean_s - mean * (most_s - mean_s) / (most - mean))
