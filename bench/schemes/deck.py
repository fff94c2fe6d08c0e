"""Which samples a worker draws, and the exact account of what became of them.

Every sample drawn gets a number of its own, never given again, so that "no sample twice" can be checked. Knows
nothing of time or gradients. All figures in samples.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Share:
    """Samples drawn together: their numbers, and their rows in the training data."""

    numbers: IntArray
    rows: IntArray

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, start: int, stop: int) -> "Share":
        """Some of them."""
        return Share(self.numbers[start:stop], self.rows[start:stop])


def joined(shares: list[Share]) -> Share:
    """All of them as one."""
    return Share(np.concatenate([s.numbers for s in shares]), np.concatenate([s.rows for s in shares]))


class Deck:
    """Deals samples.

    Args:
        labels: of the training data.
        workers: of the job.
        shards: `iid`: all workers share one permutation an epoch, each sample once. `labels`: each worker has a part
            of its own, cut from the data sorted by label, and permutes that.
        seed: of the permutations.
    """

    def __init__(self, labels: IntArray, workers: int, shards: Literal["iid", "labels"], seed: int) -> None:
        self._one = shards == "iid"
        piles = 1 if self._one else workers
        order = np.arange(len(labels)) if self._one else np.argsort(labels, kind="stable")
        self._piles = [np.asarray(pile, dtype=np.int64) for pile in np.array_split(order, piles)]
        self._rngs = [np.random.default_rng([seed, 21, pile]) for pile in range(piles)]
        self._open: list[IntArray] = [np.empty(0, dtype=np.int64)] * piles
        self._next = 0

    def draw(self, worker: int, samples: int) -> Share:
        """The worker's next samples."""
        pile = 0 if self._one else worker
        while len(self._open[pile]) < samples:
            self._open[pile] = np.concatenate([self._open[pile], self._rngs[pile].permutation(self._piles[pile])])
        rows, self._open[pile] = self._open[pile][:samples], self._open[pile][samples:]
        self._next += samples
        return Share(np.arange(self._next - samples, self._next), rows)


class Ledger:
    """What became of every sample that a worker set out to compute.

    started = applied + wasted + in_flight, always. A task counts as a whole: cancelled half-way, all its samples are
    wasted.
    """

    def __init__(self) -> None:
        self.started = self.applied = self.wasted = 0
        self.numbers: list[IntArray] = []
        """Of the samples applied, in order."""

    @property
    def in_flight(self) -> int:
        """Samples that somebody is computing, or whose gradient is under way."""
        return self.started - self.applied - self.wasted

    @property
    def wasted_share(self) -> float:
        """Of what was finished either way."""
        over = self.applied + self.wasted
        return self.wasted / over if over else 0.0

    def start(self, share: Share) -> None:
        """A worker set out to compute these."""
        self.started += len(share)

    def apply(self, share: Share) -> None:
        """Their gradient went into the model."""
        self.applied += len(share)
        self.numbers.append(share.numbers)

    def waste(self, share: Share) -> None:
        """They were computed, wholly or in part, for nothing."""
        self.wasted += len(share)
