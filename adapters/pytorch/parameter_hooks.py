"""Hooks before each parameter's gradient is accumulated; while none is to be weighed, before the last one alone.

A call into Python between the kernels of a backward pass costs some 2 microseconds with cold caches. Where gradients
weigh 1 all that is asked of the hooks is whether the pass has accumulated any, and when the last was ready, which the
parameter that has always been the last tells alone: a reduction of DistributedDataParallel needs every parameter, but
for those that find_unused_parameters leaves out. Knows nothing of weights.
"""

from collections.abc import Callable
from typing import Any

import torch

Tensors = tuple[torch.Tensor | None, ...]
Hook = Callable[[Tensors], Tensors | None]

THIN_AFTER = 20
"""Backward passes in a row that end with the same parameter and weigh nothing, after which the others are let go ..."""
THIN_FOR = 200
"""... for so many passes: a model may have come to end with another parameter."""


class ParameterHooks:
    """The hooks of all models of one job.

    Args:
        may_thin: whether a backward pass that reduces goes through all parameters.
    """

    def __init__(self, may_thin: bool) -> None:
        self.thin = False
        """Whether one parameter alone has its hook on."""
        self._may_thin = may_thin
        self._hooks: list[tuple[Any, Hook]] = []
        self._handles: dict[int, Any] = {}
        self._last: int | None = None
        self._alike = self._thin_left = 0

    def add(self, parameter: torch.nn.Parameter, hook: Hook) -> None:
        """Call this one before the parameter's gradient is accumulated."""
        with torch.enable_grad():
            node: Any = parameter.view_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
        self._handles[len(self._hooks)] = node.register_prehook(hook)
        self._hooks.append((node, hook))

    def __len__(self) -> int:
        """Parameters with hooks, on or off."""
        return len(self._hooks)

    def passed(self, last: int | None, weighed: bool) -> None:
        """A backward pass has ended.

        Args:
            last: which parameter was the last, as they were added; None where no gradient was accumulated.
            weighed: whether gradients weighed other than 1, or may have without anybody knowing it in time.
        """
        if last is None or not self._may_thin:
            return
        if self.thin:
            self._thin_left -= 1
            if not self._thin_left:
                self.all()
            return
        self._alike = self._alike + 1 if last == self._last and not weighed else 0
        self._last = last
        if self._alike >= THIN_AFTER:
            self.thin, self._thin_left = True, THIN_FOR
            for place in list(self._handles):
                if place != last:
                    self._handles.pop(place).remove()

    def all(self) -> None:
        """From now on every gradient passes its hook, those of a backward pass under way included."""
        self._alike = 0
        if self.thin:
            self.thin = False
            for place, (node, hook) in enumerate(self._hooks):
                if place not in self._handles:
                    self._handles[place] = node.register_prehook(hook)

    def remove(self) -> None:
        """Take all hooks off, for good."""
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()
        self._hooks.clear()
        self.thin = self._may_thin = False
