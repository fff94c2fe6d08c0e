"""ParameterServerStrategy: sizes by speed without a barrier, so that all workers make the same number of steps.

The coordinator keeps a queue of samples, the sizes in force and a ledger of steps, samples and time on its own device.
A scheduled step takes as many samples as its worker's size says, in one piece, so that each is taken once; its
gradients get the weight W n / X, so that each sample counts alike. Sizes in samples, times in seconds.
"""

import atexit
import json
import threading
from typing import Any

import numpy as np
import tensorflow as tf

from lbbsp.adapters.tensorflow.optimizers import Hooks, as_list, scaled, values
from lbbsp.adapters.tensorflow.rounds import Rounds
from lbbsp.adapters.tensorflow.source import Source, call
from lbbsp.errors import ConfigError, UnsupportedError
from lbbsp.worker.epochs import STATE_VERSION, Permuted, check_state
from lbbsp.worker.terms import Offer, settle

COORDINATOR = "/job:chief/replica:0/task:0/device:CPU:0"
POLL_S = 0.01
AHEAD = 8
"""The queue holds this many global batches."""


class ServedDataset(tf.train.experimental.PythonState):  # type: ignore[misc]
    """An endless stream of epochs for steps that a ClusterCoordinator schedules; made by balance() in its process.

    Pass iter(dataset) to the step and call next() on it inside, as with a per-worker dataset.

    Args:
        source: of the samples; read in the coordinator's process.
        function: called with each batch on the worker, as tf.data calls a map function.
        offers: one for each worker.
        optimizer: the one whose apply_gradients() ends a step.
        shuffle: a new permutation each epoch.
        balanced: False keeps the sizes equal.
    """

    def __init__(
        self,
        source: Source,
        function: Any,
        offers: list[Offer],
        optimizer: Any,
        shuffle: bool,
        balanced: bool,
    ) -> None:
        self.terms = settle(offers)
        self._source, self._function = source, function
        self._structure = source.read(np.arange(1))
        parts = tf.nest.flatten(self._structure)
        self._order = Permuted(source.samples, shuffle)
        self._seed = self.terms.seed
        self._epoch: tuple[int, Any] = (-1, None)
        self._start = self._filled = 0
        self._lock = threading.Lock()
        self._current: Current | None = None
        sizes = self.terms.bounds.equal()
        with tf.device(COORDINATOR):
            capacity = 2 * AHEAD * self.terms.bounds.global_batch
            self._queue = tf.queue.FIFOQueue(
                capacity, [part.dtype for part in parts], [part.shape[1:] for part in parts]
            )
            self._sizes = tf.Variable(sizes, trainable=False, dtype=tf.int64)
            self._ledger = tf.Variable(np.zeros((len(sizes), 3)), trainable=False, dtype=tf.float64)
        self._hooks = [Hooks(one, self._weigh, reduces=False) for one in as_list(optimizer)]
        self.rounds = Rounds(self.terms, offers, sizes) if balanced else None
        self._fill()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lbbsp-servers", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def __len__(self) -> int:
        """Steps of all workers together that make an epoch, about."""
        bounds = self.terms.bounds
        return -(-self._source.samples * bounds.world_size // bounds.global_batch)

    def __iter__(self) -> "ServedDataset":
        """The stream; it goes on where it is."""
        return self

    def __next__(self) -> Any:
        """In a scheduled step: the batch of the worker that runs it.

        Raises:
            UnsupportedError: called outside of a tf.function.
        """
        if not tf.inside_function():
            raise UnsupportedError(
                "next() on a dataset of ParameterServerStrategy belongs into the tf.function that "
                "ClusterCoordinator.schedule() is given: only there it is known which worker asks"
            )
        current = Current(self._sizes)
        self._current = current
        with tf.device(COORDINATOR), tf.control_dependencies([current.began]):
            taken = self._queue.dequeue_many(tf.cast(current.samples, tf.int32))
        parts = [tf.identity(part) for part in (taken if isinstance(taken, list) else [taken])]
        batch = tf.nest.pack_sequence_as(self._structure, parts)
        return batch if self._function is None else call(self._function, batch)

    # --- what a loop may ask

    @property
    def sizes(self) -> Any:
        """Samples of each worker's step now, int64 (workers,)."""
        return self._sizes.numpy()

    def ledger(self) -> Any:
        """Steps, samples and own time in seconds of each worker since the start, float64 (workers, 3)."""
        return self._ledger.numpy()

    def state_dict(self) -> dict[str, Any]:
        """What was consumed; call it after ClusterCoordinator.join(), when no step is under way."""
        return {
            "version": STATE_VERSION,
            "consumed_samples": self._start + int(self.ledger()[:, 1].sum()),
            "dataset_samples": self._source.samples,
            "seed": self._seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where state_dict() was taken; before steps are scheduled.

        Raises:
            ConfigError: the state is of another data set or a newer version.
        """
        check_state(state, self._source.samples)
        with self._lock:
            self._queue.dequeue_many(self._queue.size())
            self._seed, self._epoch = state["seed"], (-1, None)
            self._filled = state["consumed_samples"]
            self._start = self._filled - int(self.ledger()[:, 1].sum())
        self._fill()

    def serialize(self) -> str:
        """For tf.train.Checkpoint."""
        return json.dumps(self.state_dict())

    def deserialize(self, string_value: Any) -> None:
        """For tf.train.Checkpoint."""
        self.load_state_dict(json.loads(string_value))

    def close(self) -> None:
        """Stop; the optimizer gets its own methods back. Called at exit by itself."""
        atexit.unregister(self.close)
        self._stopping.set()
        self._thread.join(5.0)
        for hooks in self._hooks:
            hooks.remove()
        if self.rounds is not None:
            self.rounds.close()

    # --- inside

    def _weigh(self, gradients: list[Any]) -> list[Any]:
        """Weights, and the ledger's entry when the gradients are there."""
        current = self._current
        if current is None or current.graph is not tf.compat.v1.get_default_graph():
            raise ConfigError(
                "apply_gradients() was called in a step that took no batch from the balanced dataset: call next() on "
                "its iterator in the same tf.function"
            )
        bounds = self.terms.bounds
        weight = tf.cast(current.samples, tf.float64) * (bounds.world_size / bounds.global_batch)
        weighted = [scaled(gradient, weight) for gradient in gradients]
        if not current.entered:
            current.entered = True
            with tf.control_dependencies(values(weighted)):
                entry = current.entry(tf.timestamp())
            with tf.device(COORDINATOR):
                self._ledger.scatter_nd_add([[current.worker]], [entry])
        return weighted

    def _run(self) -> None:
        """The thread: keeps the queue filled, reports, takes plans."""
        while not self._stopping.wait(POLL_S):
            self._fill()
            sizes = self.rounds.turn(self.ledger()) if self.rounds is not None else None
            if sizes is not None:
                self._sizes.assign(sizes)

    def _fill(self) -> None:
        """Global batches into the queue until it holds AHEAD of them."""
        batch = self.terms.bounds.global_batch
        with self._lock:
            while int(self._queue.size()) < AHEAD * batch:
                epoch, position = divmod(self._filled, self._source.samples)
                if self._epoch[0] != epoch:
                    self._epoch = (epoch, self._order.indices(epoch, self._seed))
                indices = self._epoch[1][position : position + batch]
                self._queue.enqueue_many(tf.nest.flatten(self._source.read(indices)))
                self._filled += len(indices)


class Current:
    """The step being traced: its worker, its samples and the time when it began, as tensors on the worker."""

    def __init__(self, sizes: Any) -> None:
        self.graph = tf.compat.v1.get_default_graph()
        self.entered = False
        """The ledger has its entry: a step may apply several optimizers."""
        index = tf.distribute.coordinator.experimental_get_current_worker_index()
        self.worker = tf.cast(index, tf.int64) + 0
        self.began = tf.timestamp()
        with tf.device(COORDINATOR):
            samples = tf.gather(sizes, self.worker)
        self.samples = tf.identity(samples)

    def entry(self, now: Any) -> Any:
        """What the ledger adds: one step, its samples, its time in seconds."""
        return tf.stack([tf.ones([], tf.float64), tf.cast(self.samples, tf.float64), now - self.began])
