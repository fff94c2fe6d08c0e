"""Iterations whose samples the adapter does not index: loops without a DataLoader, and streams.

A cursor without end hands out the sizes; the caller says afterwards what each iteration really held.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lbbsp.core.sizing import short_slices
from lbbsp.worker.cursor import Epoch, Part
from lbbsp.worker.vector import IntArray

if TYPE_CHECKING:
    from lbbsp.adapters.pytorch.balancer import Balancer

ENDLESS = 2**48


class LooseDraws:
    """Draws of sizes alone, each followed by what was really taken.

    Args:
        balancer: the rank's part in the job; it learns the weight of each batch from here.
    """

    def __init__(self, balancer: "Balancer") -> None:
        self._balancer = balancer
        self._batch = balancer.terms.bounds.global_batch
        order = np.broadcast_to(np.int64(0), (ENDLESS // self._batch * self._batch,))
        follower = balancer.follower
        self.cursor = follower.begin(Epoch(follower.reductions, order, 0, self._batch))

    def draw(self) -> IntArray:
        """Begin an iteration; the sizes of all ranks, (ranks,)."""
        self._balancer.before_draw()
        self._balancer.follower.draw(self.cursor)
        self.cursor.next_part()
        return self.cursor.in_force.sizes

    def drawn(self, sizes: IntArray, input_s: float = 0.0) -> Part:
        """The iteration has its data: `sizes` were really taken by the ranks."""
        part = self._balancer.follower.drawn(self.cursor, input_s)
        return self._say(part, sizes, input_s)

    def shorten(self, global_samples: int) -> Part:
        """The iteration holds so many samples in all; each rank its slice of them."""
        part, input_s = self.cursor.undone[-1]
        offsets, counts = short_slices(self.cursor.in_force.sizes, self._batch, global_samples)
        return self._say(replace(part, start=int(offsets[self._balancer.session.rank])), counts, input_s)

    def _say(self, part: Part, sizes: IntArray, input_s: float) -> Part:
        rank = self._balancer.session.rank
        part = replace(part, samples=int(sizes[rank]), global_samples=int(sizes.sum()))
        self.cursor.undone[-1] = (part, input_s)
        if self.cursor is self._balancer.follower.places.main:
            self._balancer.use(part)
        return part
