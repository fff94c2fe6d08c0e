"""Training loops as users write them, and the same in one process that is fed whole global batches."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

GLOBAL_BATCH, SAMPLES, STEPS = 24, 130, 20


@dataclass
class Loop:
    """A model, its loss and its optimizer; loss(outputs, y, total): total None for a mean over the batch.

    Of a list of optimizers the first updates the first half of the variables, and so on.
    """

    model: Any
    loss: Callable[..., Any]
    optimizer: Any
    scaled: bool = False

    def gradients(self, x: Any, y: Any, total: Any) -> Any:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = self.loss(self.model(x, training=True), y, total)
            shown = self.optimizer.scale_loss(loss) if self.scaled else loss
        return tape.gradient(shown, self.model.trainable_variables), loss

    def apply(self, gradients: Any) -> None:
        pairs = list(zip(gradients, self.model.trainable_variables, strict=True))
        optimizers = self.optimizer if isinstance(self.optimizer, list) else [self.optimizer]
        part = len(pairs) // len(optimizers)
        for number, optimizer in enumerate(optimizers):
            optimizer.apply_gradients(pairs[number * part : (number + 1) * part])


@dataclass(frozen=True)
class Pattern:
    build: Callable[[], Loop]
    options: dict[str, Any] = field(default_factory=dict)
    samples: int = SAMPLES


def data(samples: int, words: bool = False) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 50, size=(samples, 4)) if words else rng.normal(size=(samples, 6))
    return x, rng.normal(size=(samples, 1))


def net(keras: Any, words: bool = False) -> Any:
    first = [keras.layers.Embedding(50, 3), keras.layers.Flatten()] if words else []
    width = (4,) if words else (6,)
    tf_keras = keras.__name__.startswith("tf_keras")
    shape = keras.layers.InputLayer(input_shape=width) if tf_keras else keras.Input(width)
    return keras.Sequential([shape, *first, keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)])


def mean(outputs: Any, y: Any, total: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_mean(tf.square(outputs - y))


def summed(outputs: Any, y: Any, total: Any) -> Any:
    import tensorflow as tf

    losses = tf.reduce_sum(tf.square(outputs - y), axis=1)
    if total is None:
        return tf.reduce_mean(losses)
    return tf.nn.compute_average_loss(losses, global_batch_size=total)


def loss_object(outputs: Any, y: Any, total: Any) -> Any:
    """Keras divides it by the number of replicas."""
    import keras

    return keras.losses.MeanSquaredError()(y, outputs)


def _keras3(optimizer: Callable[[Any], Any], words: bool = False, loss: Any = mean, scaled: bool = False) -> Any:
    def build() -> Loop:
        import keras

        keras.utils.set_random_seed(1)
        keras.backend.set_floatx("float64")
        return Loop(net(keras, words), loss, optimizer(keras.optimizers), scaled)

    return build


def _tf_keras(optimizer: Callable[[Any], Any]) -> Any:
    def build() -> Loop:
        import tf_keras

        tf_keras.utils.set_random_seed(1)
        tf_keras.backend.set_floatx("float64")
        return Loop(net(tf_keras), mean, optimizer(tf_keras.optimizers))

    return build


PATTERNS: dict[str, Pattern] = {
    "mean": Pattern(_keras3(lambda o: o.SGD(0.1))),
    "sum": Pattern(_keras3(lambda o: o.SGD(0.1), loss=summed)),
    "loss_object": Pattern(_keras3(lambda o: o.SGD(0.1), loss=loss_object), {"reduction": "keras"}),
    "clipped": Pattern(_keras3(lambda o: o.SGD(0.1, global_clipnorm=0.05))),
    "adamw": Pattern(_keras3(lambda o: o.AdamW(0.01))),
    "words": Pattern(_keras3(lambda o: o.SGD(0.1), words=True)),
    "scaled": Pattern(_keras3(lambda o: o.LossScaleOptimizer(o.SGD(0.1), initial_scale=1024.0), scaled=True)),
    "two_optimizers": Pattern(_keras3(lambda o: [o.SGD(0.1), o.Adam(0.01)])),
    "empty_part": Pattern(_keras3(lambda o: o.SGD(0.1)), samples=2 * GLOBAL_BATCH + 1),
    "empty_part_sum": Pattern(_keras3(lambda o: o.SGD(0.1), loss=summed), samples=2 * GLOBAL_BATCH + 1),
    "lookahead": Pattern(_keras3(lambda o: o.SGD(0.1)), {"lookahead": 2}),
    "tf_keras": Pattern(_tf_keras(lambda o: o.Adam(0.01))),
    "tf_keras_legacy": Pattern(_tf_keras(lambda o: o.legacy.SGD(0.1, momentum=0.9))),
}


@dataclass
class Result:
    weights: list[Any]
    expected: list[Any]
    gradient_error: float
    losses: list[float]
    expected_losses: list[float]
    sizes: list[int]
    traces: int


def train(rank: int, names: list[str]) -> dict[str, Result]:
    """Each pattern under the strategy, then alone."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    return {name: _train(strategy, name) for name in names}


def _train(strategy: Any, name: str) -> Result:
    import tensorflow as tf

    from lbbsp.adapters.tensorflow import balance

    pattern = PATTERNS[name]
    x, y = data(pattern.samples, name == "words")
    with strategy.scope():
        loop = pattern.build()
    dataset, loop.optimizer = balance((x, y), loop.optimizer, strategy, global_batch=GLOBAL_BATCH, **pattern.options)

    def replica(x: Any, y: Any) -> Any:
        total = dataset.global_samples if loop.loss is summed else None
        gradients, loss = loop.gradients(x, y, total)
        loop.apply(gradients)
        return loss

    @tf.function(reduce_retracing=True)
    def step(x: Any, y: Any) -> Any:
        return strategy.run(replica, args=(x, y))

    alone = pattern.build()

    @tf.function(input_signature=[tf.TensorSpec([None, *part.shape[1:]], part.dtype) for part in (x, y)])
    def step_alone(x: Any, y: Any) -> Any:
        gradients, loss = alone.gradients(x, y, None)
        alone.apply(gradients)
        return loss

    result = Result([], [], 0.0, [], [], [], 0)
    while len(result.sizes) < STEPS:
        for number, (bx, by) in enumerate(dataset):
            before = _weights(loop.model)
            loss = step(bx, by)
            result.sizes.append(len(bx))
            if loop.loss is loss_object:
                loss = loss * strategy.num_replicas_in_sync
            result.losses.append((dataset.sum if loop.loss is summed else dataset.mean)(loss))
            whole = slice(number * GLOBAL_BATCH, (number + 1) * GLOBAL_BATCH)
            before_alone = _weights(alone.model)
            result.expected_losses.append(float(step_alone(x[whole], y[whole])))
            moved = [a - b for a, b in zip(_weights(loop.model), before, strict=True)]
            expected = [a - b for a, b in zip(_weights(alone.model), before_alone, strict=True)]
            error = max(float(np.abs(a - b).max()) for a, b in zip(moved, expected, strict=True))
            result.gradient_error = max(result.gradient_error, error / 0.1)
            if len(result.sizes) == STEPS:
                break
    result.weights, result.expected = _weights(loop.model), _weights(alone.model)
    result.traces = step.experimental_get_tracing_count()
    dataset.close()
    return result


def _weights(model: Any) -> list[Any]:
    return [np.array(weight) for weight in model.get_weights()]
