"""Iteration times under TensorFlow on two unequal workers: equal sizes, LB-BSP, the best fixed split.

Two processes of a MultiWorkerMirroredStrategy, a core each; a busy process shares the slow one's core. As `lbbsp demo`
does for PyTorch: copies of one model train in alternating blocks on scikit-learn's digits. Prints one table.
"""

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from lbbsp.demo import digits, sweep

WORKERS, SLOW_RANK, SETTLING = 2, 1, 4
Sizes = tuple[int, ...]


class Lane:
    """One copy of the model and its step; sizes are forced."""

    def __init__(self, tf: Any, strategy: Any, options: argparse.Namespace) -> None:
        self.tf, self.strategy, self.options = tf, strategy, options
        keras = tf.keras
        with strategy.scope():
            keras.utils.set_random_seed(options.seed)
            self.model = keras.Sequential(
                [
                    keras.Input((16, 16, 1)),
                    keras.layers.Conv2D(options.filters, 3, padding="same", activation="relu"),
                    keras.layers.Conv2D(2 * options.filters, 3, padding="same", activation="relu"),
                    keras.layers.MaxPool2D(),
                    keras.layers.Flatten(),
                    keras.layers.Dense(10),
                ]
            )
            self.optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        self.step = self._step()

    def _step(self) -> Any:
        tf, model = self.tf, self.model

        def replica(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
                loss = tf.nn.compute_average_loss(losses, global_batch_size=self.options.global_batch)
            gradients = tape.gradient(loss, model.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        @tf.function(reduce_retracing=True)
        def step(x: Any, y: Any) -> None:
            self.strategy.run(replica, args=(x, y))

        return step

    def times_s(self, batches: Any, iterations: int) -> list[float]:
        """Time of each of so many iterations, the first ones left out."""
        taken = []
        for _ in range(iterations + SETTLING):
            began_s = time.perf_counter()
            self.step(*next(batches))
            taken.append(time.perf_counter() - began_s)
        return taken[SETTLING:]


class Slices:
    """This rank's slice of each global batch, epoch after epoch."""

    def __init__(self, tf: Any, data: Any, rank: int, sizes: Sizes) -> None:
        self.tf, self.data, self.rank, self.sizes = tf, data, rank, sizes
        self._order = np.arange(0)
        self._epoch = 0

    def __next__(self) -> Any:
        total = sum(self.sizes)
        if len(self._order) < total:
            self._order = np.random.default_rng(self._epoch).permutation(len(self.data[1]))
            self._epoch += 1
        mine, self._order = self._order[:total], self._order[total:]
        first = sum(self.sizes[: self.rank])
        part = mine[first : first + self.sizes[self.rank]]
        return [self.tf.convert_to_tensor(leaf[part]) for leaf in self.data]


def endless(dataset: Any) -> Any:
    """Epoch after epoch."""
    while True:
        yield from dataset


def train(rank: int, workers: list[str], options: argparse.Namespace, folder: str) -> None:
    """One worker."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank]})
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
    os.environ |= {"TF_CONFIG": json.dumps(config), "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    import tensorflow as tf

    from lbbsp.adapters.tensorflow import balance

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with np.load(Path(folder) / "digits.npz") as saved:
        data = (saved["images"].transpose(0, 2, 3, 1), saved["labels"])
    half = options.global_batch // WORKERS
    forced, fixed, balanced = (Lane(tf, strategy, options) for _ in range(3))
    dataset, balanced.optimizer = balance(
        data, balanced.optimizer, strategy, global_batch=options.global_batch, shuffle=True, drop_last=True,
        seed=options.seed, reduction="sum",
    )  # fmt: skip
    gather = dataset._control.gather
    equal_slices, fixed_slices = (Slices(tf, data, rank, (half, half)) for _ in range(2))

    def tried_s(sizes: Sizes, iterations: int) -> list[float]:
        fixed_slices.sizes = sizes
        times: list[float] = gather(fixed.times_s(fixed_slices, iterations))[0]
        return times

    best = sweep.best_sizes(tried_s, options.global_batch, SLOW_RANK)
    fixed_slices.sizes = best
    lanes = {
        "equal": (forced, equal_slices),
        "lbbsp": (balanced, endless(dataset)),
        "fixed": (fixed, fixed_slices),
    }
    balanced.times_s(lanes["lbbsp"][1], 60)
    blocks: dict[str, list[float]] = {name: [] for name in lanes}
    for block in range(options.blocks):
        for name in list(lanes) if block % 2 == 0 else reversed(lanes):
            lane, batches = lanes[name]
            gather(None)
            blocks[name].append(statistics.fmean(lane.times_s(batches, options.iterations)))
    if rank == 0:
        _tell(options, blocks, best, dataset, balanced)
    gather(None)


def _tell(options: argparse.Namespace, blocks: dict[str, list[float]], best: Sizes, dataset: Any, lane: Lane) -> None:
    ms = {name: 1e3 * statistics.median(values) for name, values in blocks.items()}
    result = {
        "iteration_ms": ms,
        "best_fixed_sizes": best,
        "sizes_at_the_end": [int(size) for size in dataset.follower.in_force.sizes],
        "speedup": ms["equal"] / ms["lbbsp"],
        "ideal_speedup": ms["equal"] / ms["fixed"],
        "efficiency": ms["fixed"] / ms["lbbsp"],
        "lag_iterations": dataset.stats()["lbbsp/lag_iterations"],
        "traces": lane.step.experimental_get_tracing_count(),
        "seed": options.seed,
    }
    print(
        f"seed {options.seed}, global batch {options.global_batch}; rank {SLOW_RANK} shares its core; ms an iteration"
    )
    for name, value in ms.items():
        print(f"{name:6} {value:7.1f} ms  {ms['equal'] / value:5.2f} times as fast as equal")
    print(f"efficiency {result['efficiency']:.3f}, best fixed split {best}, lag {result['lag_iterations']}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


def main() -> None:
    """Start the workers and the slowdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--global-batch", type=int, default=256)
    parser.add_argument("--filters", type=int, default=32, help="of the first of two convolutions")
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=30, help="of a block")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="no busy process: equal workers")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(WORKERS)]
    workers = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    with tempfile.TemporaryDirectory() as folder:
        digits.save(Path(folder) / "digits.npz")
        slow_core = sorted(os.sched_getaffinity(0))[SLOW_RANK]
        busy = [sys.executable, "-m", "lbbsp.demo.slowdown", str(os.getpid()), "busy", str(slow_core)]
        slowdown = None if options.alone else subprocess.Popen(busy)
        processes = [context.Process(target=train, args=(rank, workers, options, folder)) for rank in range(WORKERS)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if slowdown is not None:
            slowdown.terminate()
            slowdown.wait()
    sys.exit(max(abs(process.exitcode or 0) for process in processes))


if __name__ == "__main__":
    main()
