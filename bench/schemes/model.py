"""The model that is trained: one hidden layer, softmax, numpy, its parameters in one flat vector.

Knows nothing of workers. Inputs (samples, features) in float32, labels int64; the loss is mean cross-entropy.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Model:
    """features -> hidden, tanh -> classes. hidden = 0: softmax regression."""

    features: int
    classes: int
    hidden: int = 32

    def start(self, seed: int) -> Floats:
        """First parameters, (parameters,): the same for every scheme."""
        rng = np.random.default_rng([seed, 11])
        parts = []
        for wide, narrow in self._layers():
            parts += [rng.standard_normal(wide * narrow) / np.sqrt(wide), np.zeros(narrow)]
        return np.concatenate(parts).astype(np.float32)

    def gradient(self, weights: Floats, x: Floats, y: Labels) -> tuple[float, Floats]:
        """Mean loss over the samples, and its gradient, (parameters,)."""
        losses, gradients = self.gradients(weights[None], x[None], y[None])
        return float(losses[0]), gradients[0]

    def gradients(self, weights: Floats, x: Floats, y: Labels) -> tuple[Floats, Floats]:
        """Of models of their own: weights (models, parameters), x (models, samples, features), y (models, samples)."""
        inputs, scores = self._forward(weights, x)
        chance = _softmax(scores)
        models, samples = y.shape
        at = np.arange(models)[:, None], np.arange(samples)[None], y
        losses = -np.log(np.maximum(chance[at], 1e-12)).mean(axis=1)
        chance[at] -= 1.0
        behind = chance / samples
        parts: list[Floats] = []
        for layer, (matrix, _) in reversed(list(enumerate(self._unpack(weights)))):
            slope = np.matmul(inputs[layer].transpose(0, 2, 1), behind)
            parts = [slope.reshape(models, -1), behind.sum(axis=1), *parts]
            if layer:
                behind = np.matmul(behind, matrix.transpose(0, 2, 1)) * (1.0 - inputs[layer] ** 2)
        return losses, np.concatenate(parts, axis=1)

    def score(self, weights: Floats, x: Floats, y: Labels) -> tuple[float, float]:
        """Mean loss and share of right answers."""
        chance = _softmax(self._forward(weights[None], x[None])[1])[0]
        right = chance[np.arange(len(y)), y]
        return float(-np.log(np.maximum(right, 1e-12)).mean()), float((chance.argmax(axis=1) == y).mean())

    def _layers(self) -> list[tuple[int, int]]:
        if not self.hidden:
            return [(self.features, self.classes)]
        return [(self.features, self.hidden), (self.hidden, self.classes)]

    def _unpack(self, weights: Floats) -> list[tuple[Floats, Floats]]:
        at, layers = 0, []
        for wide, narrow in self._layers():
            matrix = weights[:, at : at + wide * narrow].reshape(-1, wide, narrow)
            at += wide * narrow
            layers.append((matrix, weights[:, None, at : at + narrow]))
            at += narrow
        return layers

    def _forward(self, weights: Floats, x: Floats) -> tuple[list[Floats], Floats]:
        """What goes into each layer, and the scores."""
        inputs = [x]
        for matrix, offset in self._unpack(weights):
            inputs.append(np.tanh(np.matmul(inputs[-1], matrix) + offset))
        matrix, offset = self._unpack(weights)[-1]
        return inputs[:-1], np.matmul(inputs[-2], matrix) + offset


def _softmax(scores: Floats) -> Floats:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    chance: Floats = powers / powers.sum(axis=-1, keepdims=True)
    return chance
