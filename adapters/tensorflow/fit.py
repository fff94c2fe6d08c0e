"""Feeds tf_keras's Model.fit(): a callback draws before each step, a tf.data pipeline hands over what was drawn.

fit() fetches ahead as it likes and simply waits here, so that sizes stay fresh. The pipeline says that it is endless:
otherwise each step would begin with a collective that asks whether any rank has data, and own time would hold a wait.
"""

import queue
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from lbbsp.errors import UnsupportedError
from lbbsp.worker.vector import IntArray

if TYPE_CHECKING:
    from lbbsp.adapters.tensorflow.dataset import BalancedDataset

KERAS_3 = (
    "Keras 3's fit() fails under MultiWorkerMirroredStrategy, with equal batches too: use tf_keras "
    '(TF_USE_LEGACY_KERAS=1), or a loop of your own around strategy.run(model.train_step) with reduction="keras"'
)


def arguments(
    dataset: "BalancedDataset", strategy: Any, read: Callable[[IntArray], Any], optimizer: Any, callbacks: Any
) -> dict[str, Any]:
    """What fit() is to be given: x, steps_per_epoch and callbacks.

    Raises:
        UnsupportedError: the optimizer is of Keras 3.
    """
    if type(optimizer).__module__.partition(".")[0] != "tf_keras":
        raise UnsupportedError(KERAS_3)
    drawn: queue.SimpleQueue[IntArray | None] = queue.SimpleQueue()
    return {
        "x": strategy.distribute_datasets_from_function(lambda context: _pipeline(read, drawn)),
        "steps_per_epoch": len(dataset),
        "callbacks": [_drawing(dataset, drawn), *callbacks],
    }


def _pipeline(read: Callable[[IntArray], Any], drawn: "queue.SimpleQueue[IntArray | None]") -> Any:
    sample = read(np.arange(1))
    spec = tf.nest.map_structure(lambda part: tf.TensorSpec([None, *part.shape[1:]], part.dtype), sample)

    def batches() -> Iterator[Any]:
        while (indices := drawn.get()) is not None:
            yield read(indices)

    made = tf.data.Dataset.from_generator(batches, output_signature=spec)
    return made.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))


def _drawing(dataset: "BalancedDataset", drawn: "queue.SimpleQueue[IntArray | None]") -> Any:
    """The callback that draws."""
    import tf_keras

    class Drawing(tf_keras.callbacks.Callback):  # type: ignore[misc]
        """Draws before each step; what follows an epoch's last step is no training."""

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            drawn.put(dataset.draw())

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            dataset.follower.finish()

        def on_train_end(self, logs: Any = None) -> None:
            drawn.put(None)

    return Drawing()
