"""Puts a function of our own between gradients and a Keras optimizer: Keras 3, tf_keras and its legacy optimizers.

The optimizer keeps its identity, so that checkpoints, compile() and learning rates go on as before: its methods are
replaced on the instance. Knows nothing of weights or plans.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from lbbsp.errors import UnsupportedError

Pair = tuple[Any, Any]
Change = Callable[[list[Any]], list[Any]]


class Hooks:
    """Hooks on one optimizer.

    Args:
        optimizer: of Keras.
        change: called with the gradients of each application, some of them None; what it returns is applied.
        reduces: `change` sums over the replicas; the optimizer must not do it again.

    Raises:
        UnsupportedError: what problem() says.
    """

    def __init__(self, optimizer: Any, change: Change, reduces: bool) -> None:
        plainly = tf.autograph.experimental.do_not_convert  # AutoGraph would rewrite loggers and thread pools too
        self._change, self._build = plainly(change), plainly(_build)
        self._reduces, self._built = reduces, False
        self._put_back: list[tuple[Any, str]] = []
        if why := problem(optimizer):
            raise UnsupportedError(why)
        if _is_keras3(optimizer):
            self._hook_keras3(optimizer)
        else:
            self._hook_legacy(optimizer)

    def remove(self) -> None:
        """Give the optimizer its own methods back."""
        for owner, name in self._put_back:
            owner.__dict__.pop(name, None)
        self._put_back.clear()

    def _hook_keras3(self, optimizer: Any) -> None:
        own_apply = optimizer.apply

        def apply(grads: Iterable[Any], trainable_variables: Any = None) -> None:
            if not optimizer.built:
                self._build(optimizer, trainable_variables)
            own_apply(self._change(list(grads)), trainable_variables)

        self._replace(optimizer, "apply", apply)
        inner: Any = optimizer if self._reduces else None
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
            if not self._built:
                self._built = True
                self._build(optimizer, [variable for _, variable in pairs])
            grads = self._change([gradient for gradient, _ in pairs])
            changed = [(gradient, variable) for gradient, (_, variable) in zip(grads, pairs, strict=True)]
            if self._reduces:
                kwargs["experimental_aggregate_gradients"] = False
            return own_apply(changed, name=name, **kwargs)

        self._replace(optimizer, "apply_gradients", apply_gradients)

    def _replace(self, owner: Any, name: str, method: Any) -> None:
        object.__setattr__(owner, name, method)
        self._put_back.append((owner, name))


def as_list(optimizer: Any) -> list[Any]:
    """One optimizer or several, as a list."""
    return list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]


def problem(optimizer: Any) -> str | None:
    """Why an optimizer can't be hooked: it is none of Keras on TensorFlow, or another balance() has its hooks on it."""
    if not (_is_keras3(optimizer) or (hasattr(optimizer, "apply_gradients") and hasattr(optimizer, "minimize"))):
        return (
            f"{type(optimizer).__name__} is no Keras optimizer on TensorFlow: give balance() one of "
            "tf.keras.optimizers or tf_keras.optimizers"
        )
    if {"apply", "apply_gradients"} & set(vars(optimizer)):
        return "this optimizer is balanced already: call close() on its dataset first"
    return None


def _is_keras3(optimizer: Any) -> bool:
    return hasattr(optimizer, "_all_reduce_sum_gradients") and hasattr(optimizer, "apply")


def scaled(gradient: Any, weight: Any) -> Any:
    """The gradient times the weight; exact zeros where that is 0, whatever the gradient is."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(scaled(gradient.values, weight), gradient.indices, gradient.dense_shape)
    return tf.math.multiply_no_nan(gradient, tf.cast(weight, gradient.dtype))


def values(gradients: list[Any]) -> list[Any]:
    """The tensors behind gradients, None left out."""
    present = [gradient for gradient in gradients if gradient is not None]
    return [gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient for gradient in present]


def _build(optimizer: Any, variables: Any) -> None:
    """Make the optimizer's variables in another thread, outside of the graph being traced.

    A tf.function that makes variables is traced a second time; this thread's scopes would have it make them.
    What goes wrong there is raised here: a peer's death ends TensorFlow's own collective.
    """
    make = getattr(optimizer, "build", None) or getattr(optimizer, "_create_all_weights", None)
    if make is None or variables is None:
        return
    strategy = tf.distribute.get_strategy()

    def build() -> None:
        with strategy.scope():
            make(list(variables))
            if hasattr(optimizer, "built"):
                optimizer.built = True

    with ThreadPoolExecutor(1, thread_name_prefix="lbbsp-build") as builder:
        builder.submit(build).result()


def _unchanged(grads_and_vars: Iterable[Pair]) -> list[Pair]:
    """Stands in for the optimizer's own reduction: the gradients are summed already."""
    return list(grads_and_vars)
