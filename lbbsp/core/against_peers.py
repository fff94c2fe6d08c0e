"""Detectors that compare a rank with the others in the same iteration: they know no past and need no warm-up.

In a job of unlike devices they flag the slower kind for good; those of against_past.py don't. Times in seconds.
"""

from typing import ClassVar

import numpy as np

from lbbsp.core.sight import Judgement, Options, Sight, low_median


class Threshold(Options):
    """Against the job's median: times slower than `ratio`, or more than `seconds` above it."""

    defaults: ClassVar[dict[str, float]] = {"ratio": 1.3, "seconds": 1e6}

    def judge(self, sight: Sight) -> Judgement:
        """Judge one iteration; nothing to learn."""
        middle_s = low_median(sight.reference_s)
        limit = min(self.options["ratio"], 1.0 + self.options["seconds"] / middle_s) if middle_s > 0 else np.inf
        return Judgement(sight.reference_s / middle_s, np.full(self.ranks, limit))


class Quartiles(Options):
    """Against the spread among ranks in the same iteration: Tukey's fence; says nothing below five ranks."""

    defaults: ClassVar[dict[str, float]] = {"ratio": 1.25, "fence": 3.0}

    def judge(self, sight: Sight) -> Judgement:
        """Judge one iteration; nothing to learn."""
        known = sight.reference_s[np.isfinite(sight.reference_s)]
        if len(known) < 5:
            return Judgement(np.full(self.ranks, np.nan), np.full(self.ranks, np.inf))
        places = [(len(known) - 1) // 4, (len(known) - 1) // 2, 3 * (len(known) - 1) // 4]
        low, middle, high = np.partition(known, places)[places]
        fence = (high + self.options["fence"] * (high - low)) / middle
        return Judgement(sight.reference_s / middle, np.full(self.ranks, max(self.options["ratio"], fence)))
