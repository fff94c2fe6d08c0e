"""One real rank: real gradients, real messages (gloo), and sleeps in place of the neighbours' slowdown.

Cores are few, so the time that a task takes is slept: until the moment at which the load's schedule says that this
much work is done. Everything else (stores, sends, reductions, polls) costs what it costs. Times in seconds since
the job's start, by the machine's monotonic clock, which all ranks share.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from torch.distributed import Store  # type: ignore[attr-defined]

from bench.schemes import loads
from bench.schemes.data import load
from bench.schemes.deck import Deck, Share
from bench.schemes.model import Floats, Model
from bench.schemes.world import Setup

SLICE_S = 0.004
"""Between two looks at what the others did."""
STARTS_IN_S = 0.5


@dataclass
class Account:
    """What a rank did, for the one who started it."""

    applied: list[list[int]] = field(default_factory=list)
    """Numbers of its samples that went into the model, for each iteration."""
    wasted: int = 0
    started: int = 0
    ended_s: list[float] = field(default_factory=list)
    members: list[list[int]] = field(default_factory=list)
    """Who took part, for each iteration, as this rank saw it."""
    weights: list[float] = field(default_factory=list)
    """Its model at the end."""


class Rank:
    """What both schemes need of a rank."""

    def __init__(self, rank: int, setup: Setup, load_name: str, store: Store) -> None:
        self.rank, self.setup, self.store = rank, setup, store
        self.data = load()
        self.speeds = loads.LOADS[load_name](setup.workers, setup.worker_rate, setup.seed)
        self.model = Model(self.data.train_x.shape[1], self.data.classes)
        self.weights: Floats = self.model.start(setup.seed)
        self.account = Account()
        self._deck = Deck(self.data.train_y, setup.workers, setup.shards, setup.seed)
        self._start_s = 0.0

    def agree_on_start(self) -> None:
        """All ranks count time from the same moment."""
        if self.rank == 0:
            self.store.set("start", repr(time.perf_counter() + STARTS_IN_S))
        self._start_s = float(self.store.get("start"))
        time.sleep(max(0.0, self._start_s - time.perf_counter()))

    def now_s(self) -> float:
        """Since the start."""
        return time.perf_counter() - self._start_s

    def deal(self) -> list[Share]:
        """Everybody's share of the next iteration, the same on every rank."""
        return [self._deck.draw(worker, size) for worker, size in enumerate(self.setup.shares())]

    def gradient(self, share: Share) -> Floats:
        """Of the mean loss over a share, at this rank's parameters."""
        return self.model.gradient(self.weights, self.data.train_x[share.rows], self.data.train_y[share.rows])[1]

    def compute(
        self, share: Share, stop: Callable[[float], bool], *, first: bool = True
    ) -> Floats | None:  # fmt: skip
        """A share's gradient, when its time is over. None where `stop`, told the progress, ended it before."""
        self.account.started += len(share)
        start_s = self.now_s()
        work = len(share) + self.setup.chunk_samples + (self.setup.fixed_samples if first else 0.0)
        end_s = self.speeds.end_s(self.rank, start_s, work)
        gradient = self.gradient(share)
        while (left_s := end_s - self.now_s()) > 0:
            time.sleep(min(SLICE_S, left_s))
            if stop(self.speeds.progress(self.rank, start_s, end_s, self.now_s())):
                return None
        return gradient

    def applied(self, share: Share) -> None:
        """This rank's gradient over a share went into the model."""
        self.account.applied[-1] += [int(number) for number in share.numbers]

    def step(self, iteration: int) -> np.float32:
        """Step size."""
        return np.float32(self.setup.rate * self.setup.decay**iteration)
