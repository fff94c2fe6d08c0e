"""Rows that the network learns from: the newest iterations of some workers, in arrays of a fixed size.

Batches draw whole iterations, so that the order of workers does not matter. Jobs of more than EACH workers keep
EACH of them an iteration, drawn from the seed.
"""

import numpy as np

from lbbsp.predictors.base import Array

EACH = 64
BATCH = 128
CAPACITY = 16_384


class RowBuffer:
    """Inputs, targets and weights of CAPACITY rows; a NaN target weighs nothing."""

    kept = False
    """In a journal: too large, and soon filled again."""

    def __init__(self, workers: int, width: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._workers = workers
        each = min(workers, EACH)
        self._inputs: Array = np.zeros((CAPACITY // each, each, width))
        self._each = each
        self._targets: Array = np.zeros(self._inputs.shape[:2])
        self._weights: Array = np.zeros(self._inputs.shape[:2])
        self._added = 0

    @property
    def count(self) -> int:
        """Rows that a batch can be drawn from."""
        return min(self._added, len(self._inputs)) * self._each

    def add(self, inputs: Array, targets: Array) -> None:
        """One iteration: inputs (workers, width) and targets (workers,)."""
        if self._workers > EACH:
            chosen = self._random.choice(self._workers, EACH, replace=False)
            inputs, targets = inputs[chosen], targets[chosen]
        place = self._added % len(self._inputs)
        self._inputs[place] = inputs
        self._weights[place] = np.isfinite(targets)
        self._targets[place] = np.nan_to_num(targets)
        self._added += 1

    def batch(self) -> tuple[Array, Array, Array]:
        """Inputs, targets and weights of BATCH rows, or of 8 iterations where those are more."""
        filled = min(self._added, len(self._inputs))
        iterations = max(-(-BATCH // self._each), 8)
        drawn = self._random.integers(0, filled, iterations)
        width = self._inputs.shape[2]
        return self._inputs[drawn].reshape(-1, width), self._targets[drawn].ravel(), self._weights[drawn].ravel()
