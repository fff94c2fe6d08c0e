"""Cases of ParameterServerStrategy: a coordinator, servers, and workers of which one may be slow."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

SAMPLES, GLOBAL_BATCH = 300, 30


@dataclass
class Served:
    """What the coordinator saw."""

    taken: list[list[int]] = field(default_factory=list)
    ledger: Any = None
    sizes: Any = None
    rates: Any = None
    """Steps of each worker in the second half."""
    state: Any = None


def process(rank: int, slow_worker: int, steps: int, options: dict[str, Any], folder: str | None = None) -> Any:
    """Rank 0 coordinates; the others serve until they are killed."""
    import json

    import tensorflow as tf

    config = json.loads(os.environ["TF_CONFIG"])
    if rank == 0:
        return coordinate(config["cluster"], steps, options, folder)
    task = config["task"]
    cores = sorted(os.sched_getaffinity(0))
    if task["type"] == "worker":  # one thread for each core is too few for TensorFlow's servers: they hang on one core
        os.sched_setaffinity(0, {cores[task["index"] % len(cores)]})
    tf.distribute.Server(
        tf.train.ClusterSpec(config["cluster"]),
        job_name=task["type"],
        task_index=task["index"],
        protocol="grpc",
        config=tf.compat.v1.ConfigProto(inter_op_parallelism_threads=4, intra_op_parallelism_threads=1),
    ).join()
    return None


def coordinate(cluster: dict[str, list[str]], steps: int, options: dict[str, Any], folder: str | None) -> Served:
    import keras
    import tensorflow as tf

    from lbbsp.adapters.tensorflow import balance

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), rpc_layer="grpc", task_type="chief", task_id=0
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(1e-4)
    work = options.pop("work", 1)
    data = (np.arange(SAMPLES), np.random.default_rng(0).normal(size=(SAMPLES, 4)).astype("f4"))
    dataset, optimizer = balance(data, optimizer, strategy, global_batch=GLOBAL_BATCH, **options)
    iterator = iter(dataset)

    @tf.function
    def step(iterator: Any) -> Any:
        def replica(numbers: Any, x: Any) -> Any:
            slow = tf.cast(tf.distribute.coordinator.experimental_get_current_worker_index(), tf.int32) + 1
            burnt = 1e-30 * tf.reduce_sum(x) + tf.ones([tf.shape(x)[0] * slow * work, 128]) * 0.01
            for _ in range(10):
                burnt = tf.matmul(burnt, tf.ones([128, 128]) * 0.01)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x) ** 2) * (1.0 + 1e-30 * tf.reduce_sum(burnt))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return tf.identity(numbers)

        return strategy.run(replica, args=next(iterator))

    served = Served()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, dataset=dataset)
    newest = tf.train.latest_checkpoint(folder) if folder else None
    if newest:
        checkpoint.restore(newest)
    for half in range(2):
        before = dataset.ledger()[:, 0]
        results = [coordinator.schedule(step, args=(iterator,)) for _ in range(steps // 2)]
        coordinator.join()
        served.taken += [result.fetch().tolist() for result in results]
        served.rates = dataset.ledger()[:, 0] - before
        if folder:
            checkpoint.save(str(Path(folder) / "state"))
            lines = [" ".join(map(str, taken)) for taken in served.taken]
            (Path(folder) / f"path.{dataset.state_dict()['consumed_samples']}").write_text("\n".join(lines))
            served.taken = []
        if half == 0 and os.environ.get("LINGER"):
            while True:
                coordinator.schedule(step, args=(iterator,))
                coordinator.join()
                time.sleep(0.01)
    served.ledger, served.sizes, served.state = dataset.ledger(), dataset.sizes, dataset.state_dict()
    dataset.close()
    return served
