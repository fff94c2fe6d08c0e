"""Weights gradients and watches their reduction, at apply_gradients() of a Keras optimizer.

Each rank's gradients are multiplied with its weight and summed over the ranks *before* the optimizer sees them, so
that clipping, loss scaling, accumulation and weight decay act on the gradient of the global batch, as in one process.
The optimizer's own reduction is taken out. Two host functions in the graph stamp the moment when the last gradient is
ready and the one when the reduction has ended. Works for Keras 3, tf_keras and its legacy optimizers.
"""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from lbbsp.errors import ConfigError, UnsupportedError

CLOCK_JUMP_S = 10.0
Pair = tuple[Any, Any]


class Gradients:
    """Hooks on one optimizer.

    Args:
        optimizer: keeps its identity; two of its methods are replaced on the instance.
        ready: called with the host time in seconds (perf_counter) at which the last gradient was ready.
        reduced: called when the reduction has ended.
        traced: called while a step is being traced.
    """

    def __init__(
        self,
        optimizer: Any,
        ready: Callable[[float], None],
        reduced: Callable[[], None],
        traced: Callable[[], None],
    ) -> None:
        self._weight = tf.Variable(1.0, trainable=False, dtype=tf.float64, name="lbbsp_weight")
        self.fault: Exception | None = None
        """What went wrong in a callback: raised inside, it would fail the step; the next draw raises it."""
        self.on_device = bool(tf.config.list_logical_devices("GPU"))
        self._ready, self._reduced, self._traced = ready, reduced, traced
        self._put_back: list[tuple[Any, str]] = []
        self._hook(optimizer)

    def weigh(self, weight: float) -> None:
        """What this rank's gradients are multiplied with from now on."""
        self._weight.assign(weight)

    def remove(self) -> None:
        """Give the optimizer its own methods back."""
        for owner, name in self._put_back:
            owner.__dict__.pop(name, None)
        self._put_back.clear()

    # --- hooks

    def _hook(self, optimizer: Any) -> None:
        if hasattr(optimizer, "_all_reduce_sum_gradients") and hasattr(optimizer, "apply"):
            self._hook_keras3(optimizer)
        elif hasattr(optimizer, "apply_gradients") and hasattr(optimizer, "minimize"):
            self._hook_legacy(optimizer)
        else:
            raise UnsupportedError(
                f"{type(optimizer).__name__} is no Keras optimizer on TensorFlow: give balance() one of "
                "tf.keras.optimizers or tf_keras.optimizers"
            )

    def _hook_keras3(self, optimizer: Any) -> None:
        own_apply = optimizer.apply

        def apply(grads: Iterable[Any], trainable_variables: Any = None) -> None:
            _build(optimizer, trainable_variables)
            own_apply(self.reduce(list(grads)), trainable_variables)

        self._replace(optimizer, "apply", apply)
        inner: Any = optimizer
        while inner is not None:
            self._replace(inner, "_all_reduce_sum_gradients", _unchanged)
            inner = getattr(inner, "inner_optimizer", None)

    def _hook_legacy(self, optimizer: Any) -> None:
        own_apply = optimizer.apply_gradients

        def apply_gradients(grads_and_vars: Iterable[Pair], name: str | None = None, **kwargs: Any) -> Any:
            pairs = list(grads_and_vars)
            skip = kwargs.pop("skip_gradients_aggregation", False)
            if skip or not kwargs.pop("experimental_aggregate_gradients", True):
                raise UnsupportedError("gradients were reduced before apply_gradients(): leave the reduction to it")
            grads = self.reduce([gradient for gradient, _ in pairs])
            reduced = [(gradient, variable) for gradient, (_, variable) in zip(grads, pairs, strict=True)]
            return own_apply(reduced, name=name, experimental_aggregate_gradients=False, **kwargs)

        self._replace(optimizer, "apply_gradients", apply_gradients)

    def _replace(self, owner: Any, name: str, method: Any) -> None:
        object.__setattr__(owner, name, method)
        self._put_back.append((owner, name))

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
        weighted = [_scaled(gradient, self._weight) for gradient in present]
        begun = self._call(weighted, self._at_ready)
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, weighted) if weighted else []
        self._call([*summed, *begun], self._at_reduced)
        left = iter(summed)
        return [None if gradient is None else next(left) for gradient in gradients]

    def _call(self, after: list[Any], function: Callable[..., float]) -> list[Any]:
        """Call a host function with a stamp taken when all of `after` are there."""
        with tf.control_dependencies(_flat(after)):
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


def _build(optimizer: Any, variables: Any) -> None:
    """Make the optimizer's variables in another thread, outside of the graph being traced.

    A tf.function that makes variables is traced a second time; this thread's scopes would have it make them.
    """
    if optimizer.built or variables is None:
        return
    strategy = tf.distribute.get_strategy()

    def build() -> None:
        with strategy.scope():
            optimizer.build(list(variables))
            optimizer.built = True

    builder = threading.Thread(target=build, name="lbbsp-build")
    builder.start()
    builder.join()


def _unchanged(grads_and_vars: Iterable[Pair]) -> list[Pair]:
    """Stands in for the optimizer's own reduction: the gradients are summed already."""
    return list(grads_and_vars)


def _scaled(gradient: Any, weight: Any) -> Any:
    """The gradient times the weight; exact zeros where that is 0, whatever the gradient is."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_scaled(gradient.values, weight), gradient.indices, gradient.dense_shape)
    return tf.math.multiply_no_nan(gradient, tf.cast(weight, gradient.dtype))


def _flat(gradients: list[Any]) -> list[Any]:
    return [gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient for gradient in gradients]


def _probe(after: list[Any]) -> list[Any]:
    """An element of the last value: it can't reach the host before the device's stream has come so far."""
    values = [value for value in _flat(after) if value.dtype.is_floating]
    return [tf.reshape(values[-1], [-1])[:1]] if values else []
