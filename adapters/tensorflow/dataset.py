"""The dataset that balance() returns: gives each rank its part of each global batch, epoch after epoch.

Joins session, gradients and source. tf.train.Checkpoint saves and restores it, in mid-epoch too. Sizes in samples.
"""

import atexit
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from lbbsp.adapters.tensorflow import fit
from lbbsp.adapters.tensorflow.cluster import Place
from lbbsp.adapters.tensorflow.control import Control
from lbbsp.adapters.tensorflow.gradients import Gradients
from lbbsp.adapters.tensorflow.optimizers import as_list
from lbbsp.adapters.tensorflow.reader import Reader, indices
from lbbsp.adapters.tensorflow.source import Source
from lbbsp.errors import UnsupportedError
from lbbsp.worker.cursor import Cursor, Part
from lbbsp.worker.epochs import Epochs, Permuted
from lbbsp.worker.figures import figures
from lbbsp.worker.owntime import HostMarks
from lbbsp.worker.session import Session
from lbbsp.worker.still import Alone, alone
from lbbsp.worker.terms import Offer, Terms, settle
from lbbsp.worker.vector import IntArray

log = logging.getLogger(__name__)

MANY_TRACES = 4


class BalancedDataset(tf.train.experimental.PythonState):  # type: ignore[misc]
    """Iterates over one epoch; made by balance(), on all ranks alike.

    Args:
        strategy: the job's.
        here: this process in it.
        source: of the samples; None where the offer names a problem.
        offer: what this rank brings.
        optimizer: one or a list, whose apply_gradients() reduce gradients.
        shuffle: a new permutation each epoch.
        reduction: what the loss is; see balance().
    """

    def __init__(
        self,
        strategy: Any,
        here: Place,
        source: Source | None,
        offer: Offer,
        optimizer: Any,
        shuffle: bool,
        reduction: str | None,
    ) -> None:
        self.rank = here.rank
        self._control = Control(strategy, here)
        self._strategy, self._optimizer = strategy, optimizer
        self._fitted: Cursor | None = None
        offers = [offer] if here.world_size == 1 else self._control.gather(offer)
        self.terms = settle(offers)
        if source is None:
            raise UnsupportedError("there is no source of samples")
        self._source, self._reduction = source, reduction
        self.share = 1.0
        """This rank's part of the global batch under way, 0 to 1: the weight of a mean over its samples."""
        self._undone = False
        """A batch was drawn that no reduction has followed."""
        self.session = self._begin(here, offers)
        self.follower = self.session.follower
        self.epochs = Epochs(Permuted(source.samples, shuffle), self.follower, self.terms, self._put_in_force)
        self._gradients = Gradients(as_list(optimizer), self._ready, self.follower.reduced, self._traced)
        self._global_samples = tf.Variable(0, trainable=False, dtype=tf.int32, name="lbbsp_global_samples")
        self._global_samples_used = False
        self._newest_global_samples = 0
        self._traces = 0
        self._thread = threading.get_ident()
        atexit.register(self.close)

    def __len__(self) -> int:
        """Iterations in an epoch, the same on all ranks."""
        return self.epochs.draws

    def __iter__(self) -> "BalancedIterator":
        """Begin an epoch."""
        if tf.inside_function():
            raise UnsupportedError(
                "the loop over a balanced dataset was put into a tf.function: loop in Python, and call the tf.function "
                "with each batch"
            )
        self.before_draw()
        return BalancedIterator(self, self._source, self.epochs.begin(), self.terms.lookahead)

    # --- what a loop may ask

    @property
    def global_samples(self) -> Any:
        """Samples of all ranks in the iteration under way, an int32 tensor: X, fewer in the short last one."""
        self._global_samples_used = True
        return self._global_samples.read_value()

    def fit_arguments(self, callbacks: Any = ()) -> dict[str, Any]:
        """For tf_keras, with a model compiled with the optimizer: `model.fit(**dataset.fit_arguments(), epochs=3)`.

        Args:
            callbacks: the user's own.

        Raises:
            UnsupportedError: the optimizer is of Keras 3, or the job reads ahead.
        """
        if self.terms.lookahead:
            raise UnsupportedError(f"lookahead {self.terms.lookahead}: fit() reads ahead itself; use lookahead=0")
        self._reduction = "keras"
        return fit.arguments(self, self._strategy, self._source.read, self._optimizer, callbacks)

    def draw(self) -> IntArray:
        """For fit(): begin the next iteration, in the next epoch where one has ended; the indices to read."""
        self.before_draw()
        while self._fitted is None or self._fitted.finished:
            if self._fitted is not None:
                self.epochs.ended(self._fitted)
            self._fitted = self.epochs.begin()
        cursor = self._fitted
        self.follower.draw(cursor)
        cursor.next_part()
        part = self.follower.drawn(cursor, 0.0)
        self.use(part)
        return indices(cursor, part)

    def mean(self, value: Any) -> float:
        """The mean over the global batch of a mean over this rank's part of it, a loss say; all ranks must call."""
        mine = tf.math.multiply_no_nan(tf.cast(value, tf.float64), tf.constant(self.share, tf.float64))
        return float(self._control.sum(mine))

    def sum(self, value: Any) -> float:
        """The sum over all ranks, of losses divided by the global batch say, without those of empty parts.

        A rank whose part of a short last iteration is empty steps with one sample all the same, which weighs 0 here as
        in the gradient. All ranks must call.
        """
        mine = tf.math.multiply_no_nan(tf.cast(value, tf.float64), tf.constant(float(self.share > 0), tf.float64))
        return float(self._control.sum(mine))

    def stats(self) -> dict[str, float]:
        """Figures of this rank for any logger: sizes in samples, times in seconds, counts."""
        away = isinstance(self.session, Session) and self.session.client.away
        return figures(self.follower, self.rank, self.terms.bounds.global_batch, away)

    def state_dict(self) -> dict[str, Any]:
        """Where training is, by what was consumed: alike on all ranks, good for any world size."""
        return self.epochs.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where state_dict() was taken; all ranks must call, before their next iter(). See Epochs.load."""
        self.epochs.load(state)

    def serialize(self) -> str:
        """For tf.train.Checkpoint."""
        return json.dumps(self.state_dict())

    def deserialize(self, string_value: Any) -> None:
        """For tf.train.Checkpoint."""
        self.load_state_dict(json.loads(string_value))

    def close(self) -> None:
        """Leave the job; the optimizer gets its own methods back. Called at exit by itself."""
        atexit.unregister(self.close)
        self._gradients.remove()
        self.session.close()
        self._control.close()

    # --- for the iterator

    def use(self, part: Part) -> None:
        """The batch under way is this part."""
        share = part.samples / part.global_samples
        if self._undone and share != self.share and self._reduction != "sum":
            raise UnsupportedError(
                "a second batch of another size was drawn before apply_gradients(): their gradients can't be weighed "
                "together; call apply_gradients() for each batch, or divide the loss by dataset.global_samples and say "
                'reduction="sum"'
            )
        self._undone, self.share = True, share
        self._weigh()
        if part.global_samples != self._newest_global_samples:
            self._newest_global_samples = part.global_samples
            self._global_samples.assign(part.global_samples)

    def before_draw(self) -> None:
        """Refuse draws from another thread; raise what went wrong since the last one."""
        if threading.get_ident() != self._thread:
            raise UnsupportedError(
                f"thread {threading.current_thread().name!r} draws from a dataset that another thread balanced: draw "
                "in the thread that trains, and call balance() there; use lookahead= for reading ahead"
            )
        if self._gradients.fault is not None:
            raise self._gradients.fault

    # --- inside

    def _begin(self, here: Place, offers: list[Offer]) -> Session | Alone:
        if here.world_size == 1 or os.environ.get("LBBSP_DISABLE") == "1":
            return alone(self.terms, offers[here.rank], here.rank)
        self._control.connect()
        return Session(self._control, self.terms, offers, HostMarks(time.perf_counter), here.chief_host)

    def _put_in_force(self, terms: Terms, reductions: int) -> None:
        self.terms = terms
        self.session.resume(terms, reductions)

    def _ready(self, at_s: float) -> None:
        self._undone = False
        self.follower.reduction(at_s)

    def _weigh(self) -> None:
        weights = {"sum": float(self.share > 0), "keras": self.share * len(self.follower.in_force.sizes)}
        self._gradients.weigh(weights.get(self._reduction or "mean", self.share))

    def _traced(self) -> None:
        """A step is being traced: its reading of global_samples tells what its loss is."""
        self._traces += 1
        if self._reduction is None:
            self._reduction = "sum" if self._global_samples_used else "mean"
            with tf.init_scope():
                self._weigh()
            if self.rank == 0:
                log.info("the loss is taken as reduction=%r; see balance()", self._reduction)
        if self._traces == MANY_TRACES:
            log.warning(
                "the training step was traced %d times: use @tf.function(reduce_retracing=True), so that one graph "
                "serves all batch sizes",
                self._traces,
            )


class BalancedIterator(Iterator[Any]):
    """One epoch on one rank."""

    def __init__(self, dataset: BalancedDataset, source: Source, cursor: Cursor, lookahead: int) -> None:
        self._dataset, self._cursor = dataset, cursor
        self._reader = Reader(source, cursor, lookahead)
        weakref.finalize(self, _forget, dataset, cursor, self._reader)

    def __next__(self) -> Any:
        """This rank's part of the next global batch."""
        dataset, cursor = self._dataset, self._cursor
        dataset.before_draw()
        follower = dataset.follower
        if cursor.finished:
            follower.finish()
            dataset.epochs.ended(cursor)
            raise StopIteration
        follower.draw(cursor)
        began_s = time.perf_counter()
        batch = self._reader.next()
        part = follower.drawn(cursor, time.perf_counter() - began_s)
        if cursor is follower.places.main:
            dataset.use(part)
        return batch

    def __len__(self) -> int:
        """Iterations in the epoch."""
        return self._cursor.epoch.draws


def _forget(dataset: BalancedDataset, cursor: Cursor, reader: Reader) -> None:
    """An iterator has died."""
    dataset.follower.places.forget(cursor)
    reader.close()
