"""Flat buffers in which gradients travel: filled, added up over ranks elsewhere, spread again.

A parameter without gradient here travels as zeros. A bucket may carry a few numbers more behind its gradients.
"""

from collections.abc import Sequence
from typing import Any

import torch

from lbbsp.errors import UnsupportedError

BUCKET_BYTES = 25 * 2**20
"""As DDP's: the next one is filled while this one is on its way."""


class Bucket:
    """Some parameters of one kind.

    Args:
        parameters: those, of one dtype and device.
        room: further numbers that it carries.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], room: int = 0) -> None:
        self.parameters = list(parameters)
        first, size = self.parameters[0], sum(parameter.numel() for parameter in parameters)
        self.buffer = torch.zeros(size + room, dtype=first.dtype, device=first.device)
        self._gradients, self._room = self.buffer[:size], self.buffer[size:]
        self._views: list[torch.Tensor] = []
        start = 0
        for parameter in parameters:
            self._views.append(self._gradients[start : start + parameter.numel()].view_as(parameter))
            start += parameter.numel()

    def fill(self, more: Sequence[float] = ()) -> None:
        """Take this rank's gradients.

        Raises:
            UnsupportedError: one is sparse.
        """
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad.is_sparse:
                raise UnsupportedError(
                    "claims do not reduce sparse gradients: use nn.Embedding(sparse=False), or claims=False"
                )
            else:
                view.copy_(parameter.grad)
        if more:
            self._room.copy_(torch.tensor(more, dtype=self.buffer.dtype))

    def more(self) -> list[float]:
        """The further numbers."""
        return [float(value) for value in self._room.tolist()]

    def spread(self, used: Sequence[bool], divisor: float) -> None:
        """Give each parameter that any rank used its part, divided."""
        self._gradients.div_(divisor)
        for parameter, view, by_anyone in zip(self.parameters, self._views, used, strict=True):
            if not by_anyone:
                continue
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(view)


def places_together(parameters: Sequence[torch.nn.Parameter]) -> list[list[int]]:
    """Places of parameters that travel together: of one kind, up to BUCKET_BYTES; as gradients come, last first."""
    open_: dict[Any, tuple[list[int], int]] = {}
    done: list[list[int]] = []
    for place in reversed(range(len(parameters))):
        parameter = parameters[place]
        kind = (parameter.dtype, parameter.device)
        bucket, held = open_.get(kind, ([], 0))
        held += parameter.numel() * parameter.element_size()
        bucket.append(place)
        open_[kind] = (bucket, held)
        if held >= BUCKET_BYTES:
            done.append(open_.pop(kind)[0])
    return done + [bucket for bucket, _ in open_.values()]
