"""Weights gradients and watches their reduction, at apply_gradients() of Keras optimizers.

Each rank's gradients are multiplied with its weight and summed over the ranks *before* an optimizer sees them, so
that clipping, loss scaling, accumulation and weight decay act on the gradient of the global batch, as in one process.
The optimizer's own reduction is taken out. Two host functions in the graph stamp the moment when the last gradient is
ready and the one when the reduction has ended.
"""

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lbbsp.adapters.tensorflow.optimizers import Hooks, scaled, values
from lbbsp.errors import ConfigError

CLOCK_JUMP_S = 10.0


class Gradients:
    """Hooks on the optimizers of a job.

    Args:
        optimizers: keep their identity; methods are replaced on the instances.
        ready: called with the host time in seconds (perf_counter) at which the last gradient was ready.
        reduced: called when the reduction has ended.
        traced: called while a step is being traced.
    """

    def __init__(
        self,
        optimizers: list[Any],
        ready: Callable[[float], None],
        reduced: Callable[[], None],
        traced: Callable[[], None],
    ) -> None:
        self._weight = tf.Variable(1.0, trainable=False, dtype=tf.float64, name="lbbsp_weight")
        self._newest = 1.0
        self.fault: Exception | None = None
        """What went wrong in a callback: raised inside, it would fail the step; the next draw raises it."""
        self.on_device = bool(tf.config.list_logical_devices("GPU"))
        self._ready, self._reduced, self._traced = ready, reduced, traced
        self._hooks = [Hooks(optimizer, self.reduce, reduces=True) for optimizer in optimizers]

    def weigh(self, weight: float) -> None:
        """What this rank's gradients are multiplied with from now on."""
        if weight != self._newest:
            self._newest = weight
            self._weight.assign(weight)

    def remove(self) -> None:
        """Give the optimizers their own methods back."""
        for hooks in self._hooks:
            hooks.remove()

    # --- inside the step

    def reduce(self, gradients: list[Any]) -> list[Any]:
        """The gradients of the global batch, None where there was none; with stamps before and after.

        Raises:
            ConfigError: called outside of strategy.run().
        """
        context = tf.distribute.get_replica_context()
        if context is None or not tf.distribute.has_strategy():
            raise ConfigError(
                "apply_gradients() was called outside of strategy.run(): call it in the function run there"
            )
        if tf.inside_function():
            self._traced()
        present = [gradient for gradient in gradients if gradient is not None]
        weighted = [scaled(gradient, self._weight) for gradient in present]
        begun = self._call(weighted, self._at_ready)
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, weighted) if weighted else []
        self._call([*summed, *begun], self._at_reduced)
        left = iter(summed)
        return [None if gradient is None else next(left) for gradient in gradients]

    def _call(self, after: list[Any], function: Callable[..., float]) -> list[Any]:
        """Call a host function with a stamp taken when all of `after` are there."""
        with tf.control_dependencies(values(after)):
            inputs = [tf.timestamp(), *(_probe(after) if self.on_device else [])]
            done = tf.numpy_function(function, inputs, [tf.float64])
        return list(done) if isinstance(done, list) else [done]

    def _at_ready(self, stamp: Any, *probe: Any) -> float:
        self._guarded(lambda: self._ready(self._as_host_time(float(stamp))))
        return 0.0

    def _at_reduced(self, stamp: Any, *probe: Any) -> float:
        self._guarded(self._reduced)
        return 0.0

    def _as_host_time(self, stamp: float) -> float:
        """A stamp of TensorFlow's (wall clock) on perf_counter; now, where a device was waited for or clocks jumped."""
        now_s, ago_s = time.perf_counter(), time.time() - stamp
        return now_s if self.on_device or not 0.0 <= ago_s < CLOCK_JUMP_S else now_s - ago_s

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as fault:  # kept, and raised at the next draw
            self.fault = self.fault or fault


def _probe(after: list[Any]) -> list[Any]:
    """An element of the last value: it can't reach the host before the device's stream has come so far."""
    floats = [value for value in values(after) if value.dtype.is_floating]
    return [tf.reshape(floats[-1], [-1])[:1]] if floats else []
