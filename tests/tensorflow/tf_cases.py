"""Small cases: refusals, pipelines taken apart, fit(), the examples."""

import contextlib
import io
import os
import runpy
from typing import Any

import numpy as np

X, Y = np.arange(40, dtype="f4").reshape(20, 2), np.arange(20)


class Words:
    """A sequence of samples."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return {"x": X[index], "y": index}


def pipelines(rank: int) -> dict[str, Any]:
    """What each source reads at some indices; the text of the error where it is refused."""
    import keras
    import tensorflow as tf

    from lbbsp.adapters.tensorflow import chain, source

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> Any:
            return X[:4], Y[:4]

    slices = tf.data.Dataset.from_tensor_slices
    cases: dict[str, Any] = {
        "arrays": (X, Y),
        "tensors": {"x": tf.constant(X), "name": tf.constant([str(n) for n in range(20)])},
        "sequence": Words(),
        "pipeline": slices((X, Y)).shuffle(5).map(lambda x, y: (x + 1, y)).batch(4).prefetch(3),
        "pipeline_dict": slices({"x": X}).cache().batch(4, drop_remainder=True).map(lambda d: d["x"] * 2),
        "pipeline_range": tf.data.Dataset.range(5, 45, 2).batch(4),
        "filtered": slices(X).filter(lambda x: x[0] > 1).batch(4),
        "repeated": slices(X).batch(4).repeat(),
        "generated": tf.data.Dataset.from_generator(lambda: iter(X), output_types=tf.float32).batch(4),
        "unbatched": slices(X),
        "generator": (x for x in X),
        "keras_batches": Batches(),
        "unequal": (X, Y[:3]),
        "scalar": tf.constant(1.0),
    }
    return {name: _read(chain, source, tf, case) for name, case in cases.items()}


def _read(chain: Any, source: Any, tf: Any, case: Any) -> Any:
    from lbbsp.errors import ConfigError

    try:
        made = chain.taken_apart(case) if isinstance(case, tf.data.Dataset) else None
        read = (made.source if made else source.of(case)).read(np.array([7, 2, 3]))
    except ConfigError as error:
        return str(error)
    steps = (made.batch_samples, made.drop_last, made.shuffle, made.lookahead) if made else ()
    return tf.nest.map_structure(lambda part: part.numpy().tolist(), read), steps


def refused(rank: int, what: str) -> str:
    """The error of a balance() that can't be met."""
    import tensorflow as tf

    from lbbsp.adapters.tensorflow import balance
    from lbbsp.errors import LbbspError

    data: Any = (X, Y)
    options: dict[str, Any] = {"global_batch": 8}
    if what == "mirrored":
        strategy: Any = tf.distribute.MirroredStrategy(["CPU:0"])
    elif what == "one_device":
        strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    else:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        optimizer: Any = tf.keras.optimizers.SGD(0.1)
    match what:
        case "managers":
            options["manager"] = f"tcp://127.0.0.1:{9 + rank}"
        case "empty_batches":
            options["min_samples"] = 0
        case "unknown_size":
            data = tf.data.Dataset.from_generator(lambda: iter(Y), output_types=tf.int64) if rank else (X, Y)
        case "no_batch":
            options = {}
        case "bounds":
            options["max_samples"] = 3
        case "optimizer":
            optimizer = object()
        case "reduction":
            options["reduction"] = "median"
    try:
        if what == "scope":
            with strategy.scope():
                balance(data, optimizer, strategy, **options)
        else:
            balance(data, optimizer, strategy, **options)
    except LbbspError as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"


def misused(rank: int) -> dict[str, str]:
    """Errors of a loop that can't be served; a world of one rank."""
    import threading

    import tensorflow as tf

    from lbbsp.adapters.tensorflow import balance

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
        optimizer = tf.keras.optimizers.SGD(0.1)
    dataset, optimizer = balance((X, Y), optimizer, strategy, global_batch=8)
    errors: dict[str, str] = {}

    def keep(name: str, call: Any) -> None:
        try:
            call()
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"

    keep("graph_loop", tf.function(lambda: [None for _ in dataset]))
    thread = threading.Thread(target=lambda: keep("thread", lambda: next(iter(dataset))))
    thread.start()
    thread.join()
    pairs = [(tf.zeros(variable.shape), variable) for variable in model.trainable_variables]
    keep("outside_run", lambda: optimizer.apply_gradients(pairs))
    keep("fit", dataset.fit_arguments)
    errors["batches"] = str([len(y) for _, y in dataset])
    keep("twice", lambda: balance((X, Y), optimizer, strategy, global_batch=8))
    dataset.close()
    keep("closed", lambda: balance((X, Y), optimizer, strategy, global_batch=8))
    return errors


def fitted(rank: int) -> dict[str, Any]:
    """tf_keras fit() under the strategy, and alone on whole global batches."""
    import tensorflow as tf
    import tf_keras

    from lbbsp.adapters.tensorflow import balance

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(52, 3)), rng.normal(size=(52, 1))

    def build() -> Any:
        tf_keras.utils.set_random_seed(1)
        layers = tf_keras.layers
        return tf_keras.Sequential(
            [
                layers.InputLayer(input_shape=(3,)),
                layers.Dense(4, activation="tanh", kernel_regularizer="l2", dtype="float64"),
                layers.Dense(1, dtype="float64"),
            ]
        )

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = build()
        optimizer = tf_keras.optimizers.SGD(0.1, momentum=0.9)
        model.compile(optimizer=optimizer, loss="mse")
    dataset, optimizer = balance((x, y), optimizer, strategy, global_batch=16)
    sizes: list[Any] = []
    spy = tf_keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: sizes.append(dataset.follower.in_force.sizes.tolist())
    )
    model.fit(**dataset.fit_arguments(callbacks=[spy]), epochs=4, verbose=0)
    alone = build()
    alone.compile(optimizer=tf_keras.optimizers.SGD(0.1, momentum=0.9), loss="mse")
    alone.fit(x, y, batch_size=16, shuffle=False, epochs=4, verbose=0)
    return {
        "weights": [np.array(weight) for weight in model.get_weights()],
        "expected": [np.array(weight) for weight in alone.get_weights()],
        "sizes": sizes,
    }


def keras3_train_step(rank: int) -> dict[str, Any]:
    """strategy.run(model.train_step) under Keras 3, and alone."""
    import keras
    import tensorflow as tf

    from lbbsp.adapters.tensorflow import balance

    keras.backend.set_floatx("float64")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(52, 3)), rng.normal(size=(52, 1))

    def build() -> Any:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
        model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
        return model

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = build()
    dataset, _ = balance((x, y), model.optimizer, strategy, global_batch=16, reduction="keras")

    @tf.function(reduce_retracing=True)
    def step(x: Any, y: Any) -> None:
        strategy.run(model.train_step, args=((x, y),))

    alone = build()
    sizes = []
    for _ in range(4):
        for number, batch in enumerate(dataset):
            step(*batch)
            sizes.append(len(batch[0]))
            alone.train_on_batch(x[number * 16 : number * 16 + 16], y[number * 16 : number * 16 + 16])
    weights, expected = ([np.array(w) for w in one.get_weights()] for one in (model, alone))
    return {"weights": weights, "expected": expected, "sizes": sizes, "traces": step.experimental_get_tracing_count()}


def keras3_fit(rank: int) -> str:
    """Keras 3's own fit() with equal batches: whether it works upstream by now."""
    import keras
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    try:
        model.fit(tf.data.Dataset.from_tensor_slices((X, Y.astype("f4"))).batch(4), epochs=1, verbose=0)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "works"


def disabled(rank: int) -> list[int]:
    """LBBSP_DISABLE=1: equal sizes, no manager."""
    import tensorflow as tf

    from lbbsp.adapters.tensorflow import balance

    os.environ["LBBSP_DISABLE"] = "1"
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        optimizer = tf.keras.optimizers.SGD(0.1)
    dataset, _ = balance((X, Y), optimizer, strategy, global_batch=8)
    return [len(y) for _, y in dataset]


def builds_that_fail(rank: int) -> dict[str, str]:
    """What the caller meets where an optimizer can't make its variables."""
    import keras
    import tensorflow as tf
    import tf_keras

    from lbbsp.adapters.tensorflow.optimizers import Hooks

    def fail(variables: Any) -> None:
        raise ConnectionError(f"no peer for {len(variables)} variables")

    errors = {}
    made = {
        "keras": (keras.optimizers.Adam(), "build"),
        "tf_keras": (tf_keras.optimizers.Adam(), "build"),
        "tf_keras_legacy": (tf_keras.optimizers.legacy.Adam(), "_create_all_weights"),
    }
    for name, (optimizer, method) in made.items():
        object.__setattr__(optimizer, method, fail)
        hooks = Hooks(optimizer, lambda gradients: gradients, reduces=False)
        try:
            optimizer.apply_gradients([(tf.zeros(2), tf.Variable(tf.ones(2)))])
        except ConnectionError as error:
            errors[name] = str(error)
        hooks.remove()
    return errors


def example(rank: int, script: str) -> list[float]:
    """The losses that a script prints, run as a program."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        runpy.run_path(script, run_name="__main__")
    return [float(line.split()[-1]) for line in said.getvalue().splitlines() if line.startswith("epoch")]
