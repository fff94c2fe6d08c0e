"""The bounds of a job while it runs: its own, tightened and relaxed by what ranks say of their memory.

Knows nothing of how a rank finds its bound (memory.py) or of plans. Samples.
"""

import logging
from dataclasses import replace

import numpy as np

from lbbsp.core.bounds import Bounds, IntArray
from lbbsp.errors import BoundsError

log = logging.getLogger(__name__)


class Limits:
    """Bounds in force.

    Args:
        bounds: of the job; no rank's maximum ever goes beyond them.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        """In force now; a plan exists."""
        self.problem: str | None = None
        """Why what the ranks said last can't be applied; None where it is."""
        self._job = bounds
        self._said: IntArray = bounds.max_samples.copy()
        self._stale = False

    def say(self, rank: int, most_samples: int) -> None:
        """A rank's newest bound; 0 says nothing."""
        if most_samples > 0 and most_samples != self._said[rank]:
            self._said[rank] = most_samples
            self._stale = True

    def settle(self) -> bool:
        """Apply what was said; True where the bounds have changed. What would leave no plan is named, not applied."""
        if not self._stale:
            return False
        self._stale = False
        wanted = replace(self._job, max_samples=np.minimum(self._job.max_samples, self._said))
        try:
            wanted.check()
        except BoundsError as error:
            if self.problem is None:
                log.warning("bounds that memory asks for are not applied: %s", error)
            self.problem = str(error)
            return False
        self.problem = None
        changed = not np.array_equal(wanted.max_samples, self.bounds.max_samples)
        self.bounds = wanted
        return changed
