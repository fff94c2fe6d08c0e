"""A network of one hidden layer with a linear path beside it, trained by Adam; numpy only.

output = tanh(x W1 + b1) w2 + x w3 + b3. The output starts at zero, so an untrained network changes nothing.
Adam is Kingma and Ba (2015), with decoupled weight decay (Loshchilov and Hutter, 2019); the loss is Huber's,
so that a spike pulls no harder than a move of one step. Inputs and targets are expected to be about 1 in size.
"""

from collections.abc import Mapping

import numpy as np

from lbbsp.errors import ConfigError
from lbbsp.predictors.base import Array

NAMES = ("w1", "b1", "w2", "w3", "b3")
MOMENTUM, SQUARES = 0.9, 0.99


class Network:
    """Weights are drawn from the seed. `decay` pulls them to zero by rate * decay each step."""

    def __init__(self, width: int, hidden: int, seed: int, rate: float = 0.003, decay: float = 0.3) -> None:
        self.rate = rate
        self.decay = decay
        first = np.random.default_rng(seed).normal(0.0, 1.0 / np.sqrt(width + 1), (width, hidden))
        zeros = np.zeros
        self.weights: list[Array] = [first, zeros(hidden), zeros(hidden), zeros(width), zeros(1)]
        self._mean = [np.zeros_like(weight) for weight in self.weights]
        self._square = [np.zeros_like(weight) for weight in self.weights]
        self._steps = 0

    def output(self, rows: Array) -> Array:
        """(count, width) -> (count,), in single precision for speed."""
        w1, b1, w2, w3, b3 = (weight.astype(np.float32) for weight in self.weights)
        small = rows.astype(np.float32)
        output: Array = (np.tanh(small @ w1 + b1) @ w2 + small @ w3 + b3).astype(np.float64)
        return output

    def learnt(self) -> dict[str, Array]:
        """Copies of the weights by name."""
        return {name: weight.copy() for name, weight in zip(NAMES, self.weights, strict=True)}

    def start_from(self, learnt: Mapping[str, Array]) -> None:
        """Take over weights. Raises ConfigError where their shapes differ from these."""
        for name, weight in zip(NAMES, self.weights, strict=True):
            shape = learnt[name].shape if name in learnt else None
            if shape != weight.shape:
                raise ConfigError(f"weights {name} have shape {shape}, this network wants {weight.shape}")
        self.weights = [learnt[name].copy() for name in NAMES]

    def fit(self, rows: Array, targets: Array, weights: Array) -> None:
        """One step of Adam on a batch; weights (count,) say how much each row counts."""
        for index, gradient in enumerate(self._gradients(rows, targets, weights)):
            self._move(index, gradient)
        self._steps += 1

    def _gradients(self, rows: Array, targets: Array, weights: Array) -> tuple[Array, ...]:
        w1, b1, w2, w3, b3 = self.weights
        layer = np.tanh(rows @ w1 + b1)
        wrong = layer @ w2 + rows @ w3 + b3 - targets
        pull = np.clip(wrong, -1.0, 1.0) * weights / max(float(weights.sum()), 1.0)
        back = np.outer(pull, w2) * (1.0 - layer**2)
        return rows.T @ back, back.sum(0), pull @ layer, pull @ rows, pull.sum(keepdims=True)

    def _move(self, index: int, gradient: Array) -> None:
        mean, square, weight = self._mean[index], self._square[index], self.weights[index]
        mean += (1 - MOMENTUM) * (gradient - mean)
        square += (1 - SQUARES) * (gradient**2 - square)
        step = mean / (1 - MOMENTUM ** (self._steps + 1))
        size = np.sqrt(square / (1 - SQUARES ** (self._steps + 1))) + 1e-8
        weight -= self.rate * (step / size + self.decay * weight)
