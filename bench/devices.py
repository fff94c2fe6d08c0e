"""Simulated accelerators: time curves of a public recording, knees, memory limits, noise, neighbours, heat.

The lines (seconds against CIFAR samples, four unlike cards, X = 512) were fitted from a public recording; knees and
memory are drawn per seed and hidden from the rules, which see sizes, own times, peaks and budgets only.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from lbbsp.core.memory import MemoryModel, Reading
from lbbsp.core.rules.base import Array, Bounds, IntArray
from lbbsp.core.sizing import Curves, allocate

GLOBAL_BATCH = 512
RECORDED = {
    "resnet18": ((0.045, 0.029, 0.003, 0.048), (0.00050, 0.00060, 0.00081, 0.0048)),
    "efficientnet-b0": ((0.028, 0.026, 0.012, 0.047), (0.00064, 0.00065, 0.00081, 0.0038)),
    "shufflenet-v2": ((0.009, 0.019, 0.025, 0.047), (0.00045, 0.00038, 0.00036, 0.0013)),
    "vit": ((0.022, 0.033, 0.033, 0.053), (0.0010, 0.00095, 0.0011, 0.0044)),
}
"""Offsets in seconds and slopes in seconds a sample of the four cards."""
KNEES = (2, 48)
"""Samples, uniform in the logarithm."""
LIMITS = (0.32, 0.8)
"""Memory of a card in global batches of samples, uniform."""
FIXED_MEMORY = 0.15
"""Share of the memory that a batch of none takes."""

Slowdown = Callable[[int], Array]


def steady(iteration: int) -> Array:
    """Nobody is slowed down."""
    return np.ones(4)


def neighbour(card: int, start: int = 60, length: int = 50) -> Slowdown:
    """Halves one card for some iterations."""
    return lambda k: np.where((np.arange(4) == card) & (start <= k < start + length), 2.0, 1.0)


def heat(card: int, start: int = 60, length: int = 500) -> Slowdown:
    """Slows one card by 20 %, little by little."""
    return lambda k: np.where(np.arange(4) == card, 1.0 + 0.2 * np.clip((k - start) / length, 0.0, 1.0), 1.0)


@dataclass
class Cards:
    """Four cards under one model."""

    offset_s: Array
    slope_s: Array
    knee: Array
    limit: IntArray
    """Most samples of each card before it runs out of memory."""
    noise: float
    rng: np.random.Generator
    slowdown: Slowdown = steady
    _best_s: dict[bytes, float] = field(default_factory=dict)

    def curves(self, iteration: int) -> Curves:
        """The true ones."""
        slow = self.slowdown(iteration)
        flat = self.offset_s + self.slope_s * self.knee
        return Curves(flat * slow, self.offset_s * slow, self.slope_s * slow)

    def own_s(self, iteration: int, sizes: IntArray) -> Array:
        """What each card would measure."""
        return self.curves(iteration).time_s(sizes) * np.exp(self.noise * self.rng.standard_normal(len(sizes)))

    def best_s(self, iteration: int) -> float:
        """The least possible time of an iteration, memory limits known."""
        key = self.slowdown(iteration).tobytes()
        if key not in self._best_s:
            curves = self.curves(iteration)
            self._best_s[key] = float(curves.time_s(allocate(curves, bounds(self.limit))).max())
        return self._best_s[key]


def bounds(most: IntArray) -> Bounds:
    """Of the job, with these maxima."""
    return Bounds(GLOBAL_BATCH, np.ones(4, dtype=np.int64), np.minimum(most, GLOBAL_BATCH))


def cards(model: str, seed: int, noise: float = 0.05, slowdown: Slowdown = steady) -> Cards:
    """The four cards, knees and memory drawn by the seed."""
    rng = np.random.default_rng(seed)
    offset, slope = (np.array(values) for values in RECORDED[model])
    knee = np.exp(rng.uniform(*np.log(KNEES), 4))
    limit = (rng.uniform(*LIMITS, 4) * GLOBAL_BATCH).astype(np.int64)
    return Cards(offset, slope, knee, limit, noise, rng, slowdown)


class Memory:
    """The cards' memory, and the models that bound the sizes by it."""

    def __init__(self, limit: IntArray) -> None:
        self._per_sample = (1.0 - FIXED_MEMORY) / limit
        self.models = [MemoryModel(GLOBAL_BATCH) for _ in limit]
        self.crossed = np.zeros(len(limit), dtype=np.int64)

    def run(self, sizes: IntArray, limit: IntArray) -> None:
        """One iteration: what fits is learnt from, what does not is a failure."""
        for card, model in enumerate(self.models):
            size = int(sizes[card])
            if size > limit[card]:
                self.crossed[card] += 1
                model.failed(size, 1.0)
            else:
                model.learn(Reading(size, FIXED_MEMORY + self._per_sample[card] * size, 1.0))

    def bounds(self) -> Bounds:
        """What the models allow now."""
        found = bounds(np.array([model.bound() for model in self.models]))
        return found if found.possible() else bounds(np.full(4, GLOBAL_BATCH))
