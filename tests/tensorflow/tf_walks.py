"""Cases that walk over epochs of numbers, so that a test can see which rank took what, and when."""

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Plan:
    """What to walk over, and how."""

    samples: int = 206
    global_batch: int = 16
    epochs: int = 3
    lookahead: tuple[int, ...] = (0,)
    """Of each rank; the last one stands for all further ranks."""
    options: dict[str, Any] = field(default_factory=lambda: {"shuffle": True})
    pipeline: bool = False
    broken: int | None = None


@dataclass
class Walk:
    """One rank's account."""

    draws: list[list[int]] = field(default_factory=list)
    """Samples of each draw that had weight."""
    sizes: list[tuple[int, ...]] = field(default_factory=list)
    """The vector in force at each draw."""
    weights: Any = None
    state: Any = None


def raising(broken: int) -> Any:
    def check(number: Any) -> Any:
        if broken in np.asarray(number):
            raise LookupError(f"sample {broken} is broken")
        return number

    return check


def _set_up(rank: int, plan: Plan) -> tuple[Any, Any, Any, Any, Any]:
    import keras
    import tensorflow as tf

    from lbbsp.adapters.tensorflow import balance

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(1e-6, momentum=0.9)
    options = dict(plan.options)
    data: Any = np.arange(plan.samples)
    if plan.broken is not None:
        options["map"] = raising(plan.broken)
    if plan.pipeline:
        data = tf.data.Dataset.range(plan.samples).shuffle(10).map(lambda n: n + 1).batch(plan.global_batch)
        data = data.map(lambda n: n - 1).prefetch(plan.lookahead[min(rank, len(plan.lookahead) - 1)])
    else:
        options["global_batch"] = plan.global_batch
        options["lookahead"] = plan.lookahead[min(rank, len(plan.lookahead) - 1)]
    dataset, optimizer = balance(data, optimizer, strategy, **options)

    def replica(numbers: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(tf.cast(numbers, tf.float32)[:, None]))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @tf.function(reduce_retracing=True)
    def step(numbers: Any) -> Any:
        strategy.run(replica, args=(numbers,))

    return strategy, model, optimizer, dataset, step


def _take(walk: Walk, dataset: Any, batch: Any) -> None:
    walk.sizes.append(tuple(int(size) for size in dataset.follower.in_force.sizes))
    walk.draws.append([int(number) for number in batch] if dataset.share else [])


def walk(rank: int, plan: Plan) -> Walk:
    """Whole epochs."""
    _, _, _, dataset, step = _set_up(rank, plan)
    done = Walk()
    for _ in range(plan.epochs):
        for batch in dataset:
            _take(done, dataset, batch)
            step(batch)
    return done


def peeking(rank: int, plan: Plan) -> Walk:
    """Looks at a batch on one rank only; ends epochs early."""
    _, _, _, dataset, step = _set_up(rank, plan)
    if rank == 1:
        next(iter(dataset))
    done = Walk()
    for epoch in range(plan.epochs):
        for number, batch in enumerate(dataset):
            _take(done, dataset, batch)
            step(batch)
            if number == 4 and epoch == 1:
                break
    return done


def part(rank: int, plan: Plan, folder: str, draws: int, die_after: int | None = None) -> Walk:
    """Restore the newest checkpoint, go on for so many draws, saving every fifth; rank 0 may die on the way."""
    import tensorflow as tf

    _, model, optimizer, dataset, step = _set_up(rank, plan)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, dataset=dataset)
    place = Path(folder) / ("chief" if rank == 0 else f"other{rank}")
    newest = tf.train.latest_checkpoint(str(Path(folder) / "chief"))
    if newest:
        checkpoint.restore(newest)
    done = Walk()
    while True:
        for batch in dataset:
            _take(done, dataset, batch)
            step(batch)
            _record(folder, rank, int(optimizer.iterations.numpy()), done.draws[-1])
            if len(done.draws) % 5 == 0 or len(done.draws) == draws:
                checkpoint.save(str(place / "state"))
            if rank == 0 and len(done.draws) == die_after:
                os.kill(os.getpid(), signal.SIGKILL)
            if len(done.draws) == draws:
                done.state, done.weights = dataset.state_dict(), [np.array(w) for w in model.get_weights()]
                return done


def _record(folder: str, rank: int, iteration: int, samples: list[int]) -> None:
    """What the step that made this iteration took; a step that is done again overwrites it."""
    path = Path(folder) / f"steps.{iteration}.{rank}"
    path.write_text(" ".join(map(str, samples)))


def dying(rank: int, plan: Plan) -> Walk:
    """Rank 1 dies in mid-epoch."""
    _, _, _, dataset, step = _set_up(rank, plan)
    for number, batch in enumerate(dataset):
        if rank == 1 and number == 5:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        step(batch)
    return Walk()


def bereft(rank: int, plan: Plan) -> Walk:
    """The job's own manager is killed in the first epoch."""
    _, _, _, dataset, step = _set_up(rank, plan)
    done = Walk()
    for _ in range(plan.epochs):
        for batch in dataset:
            _take(done, dataset, batch)
            step(batch)
            if rank == 0 and len(done.draws) == 6:
                os.kill(dataset.session._child.process.pid, signal.SIGKILL)
    done.state = dataset.stats()
    return done
