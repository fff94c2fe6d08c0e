"""Which draw the gradients under way belong to, also where a loop draws ahead of what it trains on.

A forward pass belongs to a draw not yet seen in one whose samples are the first dimension of its input: the oldest
such in a loop that draws ahead, the newest in others; the counts tell which kind of loop it is. Where none matches
(micro-batches, flattened inputs) it belongs to the newest. What is bound stays until its backward pass is done. Pure.
"""

from collections import deque

from lbbsp.worker.cursor import Part

REMEMBERED = 4


class Binding:
    """Draws that wait for their forward pass, and the one that gradients are weighed by."""

    def __init__(self) -> None:
        self.part: Part | None = None
        self._waiting: deque[Part] = deque(maxlen=REMEMBERED)
        self._under_way = False
        self._ahead: bool | None = None

    def drawn(self, part: Part) -> None:
        """A draw has its data; told again, it is shorter than it was planned."""
        if self._waiting and self._waiting[-1].draw == part.draw:
            self._waiting.pop()
        self._waiting.append(part)
        if not self._under_way:
            self.part = part

    def forward(self, samples: int | None) -> None:
        """A forward pass with gradients begins; `samples` is its input's first dimension, None where it has none."""
        self._under_way = True
        matching = [place for place, part in enumerate(self._waiting) if part.samples == samples]
        if matching:
            self._tell(matching)
            for _ in range(matching[0 if self._ahead else -1] + 1):
                self.part = self._waiting.popleft()
        elif self.part is None or self.part.samples != samples:
            self.part = self._waiting[-1] if self._waiting else self.part
            self._waiting.clear()

    def _tell(self, matching: list[int]) -> None:
        """Whether the loop draws ahead: by how many draws came before its first forward pass, then by the counts."""
        several = len(self._waiting) > 1
        if self._ahead is None:
            self._ahead = several
        elif several and len(matching) == 1:
            self._ahead = matching[0] < len(self._waiting) - 1

    def clear(self) -> None:
        """Nothing is under way: gradients belong to no draw."""
        self.part, self._under_way = None, False
        self._waiting.clear()

    def backward_done(self) -> None:
        """The backward pass has ended: gradients that follow may belong to another draw."""
        self._under_way = False
