"""Where an iteration's own time goes: from the draw to the forward pass, forward, backward; the rest is what is left.

Looked at in each tenth iteration, so that stamps of devices cost little; it is evidence for why a rank is slow. Knows
nothing of frameworks: the adapter says when each begins and ends. Seconds.
"""

from typing import Any

from lbbsp.worker.owntime import Marks

EVERY = 10
PREPARE, FORWARD, BACKWARD = range(3)
Spans = list[tuple[int, Any, Any]]


class Phases:
    """Stamps one iteration in ten; in the others each call is a glance at a flag.

    Args:
        marks: the stamps of own time; on a device they follow its stream, so that copies to it count where they run.
    """

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._on = False
        self._turn = 0
        self._spans: Spans = []
        self._drawn: Any = None
        self._forward: Any = None
        self._backward: Any = None

    def drawn(self) -> None:
        """The batch is in the loop's hands."""
        if self._on:
            self._drawn = self._marks.stamp()

    def forward(self) -> None:
        """A forward pass begins."""
        if not self._on:
            return
        self._forward = self._marks.stamp()
        if self._drawn is not None:
            self._spans.append((PREPARE, self._drawn, self._forward))
            self._drawn = None

    def resumed(self) -> None:
        """The forward pass goes on after a wait for others, which came before anything else of it."""
        if self._forward is not None:
            self._forward = self._marks.stamp()

    def forwarded(self) -> None:
        """It has ended."""
        if self._forward is not None:
            self._spans.append((FORWARD, self._forward, self._marks.stamp()))
            self._forward = None

    def backward(self) -> None:
        """A backward pass begins."""
        if self._on:
            self._backward = self._marks.stamp()

    def backwarded(self, last_gradient: Any = None) -> None:
        """It has ended, with the stamp of its last gradient; default now."""
        if self._backward is not None:
            end = self._marks.stamp() if last_gradient is None else last_gradient
            self._spans.append((BACKWARD, self._backward, end))
            self._backward = None

    def take(self) -> Spans:
        """What was stamped in the iteration that ends here; the next one begins."""
        self._turn += 1
        self._on = self._turn % EVERY == 0
        spans, self._spans = self._spans, []
        self._drawn = self._forward = self._backward = None
        return spans


def seconds(spans: Spans, marks: Marks) -> tuple[float, ...]:
    """Time before forward, in forward and in backward; nothing where nothing was stamped or a device is still busy."""
    sums = [0.0, 0.0, 0.0]
    for phase, start, end in spans:
        span_s = marks.between(start, end)
        if span_s is None:
            return ()
        sums[phase] += max(span_s, 0.0)
    return tuple(sums) if spans else ()
