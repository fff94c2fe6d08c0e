"""Copies of one model under TensorFlow that train side by side: with sizes forced from outside, or LB-BSP's.

All see the same global batches in the same order. An iteration is timed from outside, alike for all: a stamp in the
graph when the last gradient is there. What follows it is the wait for the others, with the optimizer's update.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lbbsp.adapters.tensorflow import balance
from lbbsp.demo.blocks import Measured
from lbbsp.demo.records import LBBSP, WORKERS, Settings
from lbbsp.worker.epochs import Permuted
from lbbsp.worker.vector import IntArray

Data = tuple[Any, Any]


class Lane:
    """One copy of the model, its optimizer and its step.

    Args:
        name: what its rows say.
        strategy: of the job.
        settings: of the run.
        side: of the images.
    """

    sizes: tuple[int, ...] | None = None
    batches: Iterator[Data]
    iterations = 0

    def __init__(self, name: str, strategy: Any, settings: Settings, side: int) -> None:
        self.name, self._strategy = name, strategy
        self._global_batch = settings.global_batch
        with strategy.scope():
            self._model = cnn(settings, side)
            self.optimizer = optimizer(settings)
        kind = tf.float64 if settings.float64 else tf.float32
        signature = [tf.TensorSpec([None, side, side, 1], kind), tf.TensorSpec([None], tf.int64)]
        self._step = tf.function(self._on_replica, input_signature=signature)

    @property
    def lag(self) -> int:
        """How old the news behind the newest sizes was; 0 where sizes are forced."""
        return 0

    def iterate(self) -> Measured:
        """One iteration."""
        began_s, began_clock_s = time.perf_counter(), time.time()
        images, labels = next(self.batches)
        drawn_s = time.perf_counter()
        loss, last_clock_s = (float(value) for value in self._step(images, labels))
        iteration_s, own_s = time.perf_counter() - began_s, last_clock_s - began_clock_s
        return Measured(len(labels), iteration_s, own_s, iteration_s - own_s, drawn_s - began_s, loss)

    def _on_replica(self, images: Any, labels: Any) -> Any:
        return self._strategy.run(self._replica, args=(images, labels))

    def _replica(self, images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self._model(images, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=self._global_batch)
        gradients = tape.gradient(loss, self._model.trainable_variables)
        with tf.control_dependencies(gradients):
            last = tf.timestamp()
        self.optimizer.apply_gradients(zip(gradients, self._model.trainable_variables, strict=True))
        return tf.reduce_mean(losses), last


class ForcedLane(Lane):
    """Sizes are set from outside."""

    def __init__(self, name: str, strategy: Any, settings: Settings, data: Data, rank: int) -> None:
        super().__init__(name, strategy, settings, data[0].shape[1])
        half = (settings.global_batch // WORKERS,) * WORKERS
        self._slices = Slices(len(data[1]), settings.seed, rank, half)
        self.sizes = half
        self.batches = (tuple(tf.convert_to_tensor(leaf[part]) for leaf in data) for part in self._slices)

    def force(self, sizes: tuple[int, ...]) -> None:
        """Use these sizes from the next iteration on."""
        self.sizes = self._slices.sizes = sizes


class Slices:
    """This rank's slice of each global batch, epoch after epoch without end, in the order that balance() shuffles in.

    Sizes may be set anew between draws.
    """

    def __init__(self, samples: int, seed: int, rank: int, sizes: tuple[int, ...]) -> None:
        self._order, self._seed, self._rank, self.sizes = Permuted(samples, shuffle=True), seed, rank, sizes

    def __iter__(self) -> Iterator[IntArray]:
        """Indices of each draw; whole global batches only."""
        drawn = 0
        while True:
            order, total = self._order.indices(drawn, self._seed), sum(self.sizes)
            for start in range(0, len(order) - total + 1, total):
                first = start + sum(self.sizes[: self._rank])
                yield order[first : first + self.sizes[self._rank]]
                drawn += 1


class BalancedLane(Lane):
    """The adapter's two lines, and nothing else."""

    def __init__(self, strategy: Any, settings: Settings, data: Data) -> None:
        super().__init__(LBBSP, strategy, settings, data[0].shape[1])
        self.dataset, self.optimizer = balance(
            data,
            self.optimizer,
            strategy,
            global_batch=settings.global_batch,
            shuffle=True,
            seed=settings.seed,
            drop_last=True,
            reduction="sum",
        )
        self.batches = self._epochs()

    def _epochs(self) -> Iterator[Data]:
        while True:
            yield from self.dataset

    @property
    def lag(self) -> int:
        """How old the news behind the newest sizes was, in iterations; 0 before the first plan."""
        lags = self.dataset.follower.totals.lags
        return lags[-1] if lags else 0


def dataset(path: Path, settings: Settings) -> Data:
    """What digits.save() wrote; images as (samples, side, side, 1)."""
    with np.load(path) as saved:
        images = saved["images"].transpose(0, 2, 3, 1)
        return np.ascontiguousarray(images, dtype="f8" if settings.float64 else "f4"), saved["labels"]


def cnn(settings: Settings, side: int) -> Any:
    """The torch demo's three convolutions; no BatchNorm and no dropout, so that every split gives the same gradient."""
    keras.utils.set_random_seed(settings.seed)
    keras.config.set_dtype_policy("float64" if settings.float64 else "float32")
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((side, side, 1)),
            layers.Conv2D(28, 3, padding="same", activation="relu"),
            layers.Conv2D(48, 3, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def optimizer(settings: Settings) -> Any:
    """An optimizer with steps small enough for any seed."""
    if settings.optimizer == "adamw":
        return keras.optimizers.AdamW(1e-3, weight_decay=0.01)
    return keras.optimizers.SGD(0.02, momentum=0.9)
