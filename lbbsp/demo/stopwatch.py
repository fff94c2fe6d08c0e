"""Times one iteration of a DDP model from outside, alike for every way of training. Seconds on one monotonic clock."""

import time

import torch
from torch import nn


class Stopwatch:
    """Splits an iteration at its last gradient: own work before, the wait for the others after.

    Args:
        model: its first layer's gradients are the last of a backward pass.
    """

    def __init__(self, model: nn.Module) -> None:
        self._last_gradient_s = 0.0
        first = next(module for module in model.modules() if next(module.parameters(False), None) is not None)
        for parameter in first.parameters(False):
            parameter.register_hook(self._stamp)  # type: ignore[no-untyped-call]

    def _stamp(self, gradient: torch.Tensor) -> None:
        self._last_gradient_s = time.perf_counter()

    def begin(self) -> None:
        """The iteration begins."""
        self._began_s = time.perf_counter()

    def drawn(self) -> None:
        """The batch is there."""
        self._drawn_s = time.perf_counter()

    def reduced(self) -> None:
        """backward() has come back, so the gradients are summed."""
        self._reduced_s = time.perf_counter()

    def end(self) -> tuple[float, float, float, float]:
        """Iteration, own work up to the last gradient, wait, and the part of own work that went into the draw."""
        last_s = self._last_gradient_s
        return (
            time.perf_counter() - self._began_s,
            last_s - self._began_s,
            self._reduced_s - last_s,
            self._drawn_s - self._began_s,
        )
