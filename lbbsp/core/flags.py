"""When a suspicion becomes a flag and when a flag ends, as arrays over ranks; no rank is flagged for one bad iteration.

Knows nothing of what is suspected. A count rises with each suspicious iteration and falls with each calm one.
"""

import numpy as np
import numpy.typing as npt

from lbbsp.core.sight import Judgement

BoolArray = npt.NDArray[np.bool_]

RAISE_AT, MOST = 4, 8
LASTING = 50
"""Iterations after which a flag is called lasting; before, transient."""
_CLEAR = 0.6
"""Calm is what is below 1 + 0.6 (limit - 1): between this and the limit, counts stand still."""


class Flags:
    """The flags of one detector."""

    def __init__(self, ranks: int) -> None:
        self.count: npt.NDArray[np.int64] = np.zeros(ranks, dtype=np.int64)
        self.raised: BoolArray = np.zeros(ranks, dtype=np.bool_)
        self.since: npt.NDArray[np.int64] = np.full(ranks, -1, dtype=np.int64)
        """First suspicious iteration of what is counted now."""
        self.blips: npt.NDArray[np.int64] = np.zeros(ranks, dtype=np.int64)
        """Times that a suspicion ended without a flag."""

    def see(self, iteration: int, judgement: Judgement) -> None:
        """Count one iteration."""
        with np.errstate(invalid="ignore"):
            over = judgement.slowdown > judgement.limit
            if not self.count.any() and not over.any():
                return
            calm = judgement.slowdown <= 1.0 + _CLEAR * (judgement.limit - 1.0)
        self.since = np.where(over & (self.count == 0), iteration, self.since)
        before = self.count
        self.count = np.clip(before + over - calm, 0, MOST)
        self.blips += (before > 0) & (self.count == 0) & ~self.raised
        self.raised = (self.raised & (self.count > 0)) | (self.count >= RAISE_AT)
