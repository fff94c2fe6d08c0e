"""How many samples fit a device: a model of peak memory against samples, and the bound that follows from it.

peak(x) = fixed + per_sample x. While one size is known the whole peak counts as per sample, which errs on the safe
side for larger sizes. What failed is a ceiling until clearly more memory is free than when it failed.
Pure: readings come in. One device; bytes and samples.
"""

import math
from dataclasses import dataclass

MARGIN = 0.06
"""Share of the budget that stays free: the allocator's rounding, fragments, growth between two readings."""
MOST_GROWTH = 2.0
"""A bound is at most so many times the largest size that has worked."""
BACK_OFF = 0.9
"""After a failure at x: this share of it, or the largest size that has worked where that is more."""
MORE_FREE = 1.1
"""A ceiling is lifted by so many times the budget at which it was found."""
PROBE_SHARE = 0.5
"""Of the margin stays free where one sample more is tried, so that small batches tell their fixed part: while it is
not known, the whole peak counts as per sample, and the true peak is below that."""
SIZES_APART = 1.15
"""Two sizes tell a slope where the larger is so many times the smaller."""


@dataclass(frozen=True)
class Reading:
    """Of one iteration."""

    samples: int
    """In the largest batch that was processed at once."""
    peak_bytes: float
    """The most that this process held; NaN where it is not known."""
    budget_bytes: float
    """What it could hold now: its own memory and what is free on the device, other processes counted."""


class MemoryModel:
    """Bound of one rank.

    Args:
        most_samples: no bound is above it: the user's own, or the global batch.
        least_samples: no bound is below it.
        margin: share of the budget that stays free.
    """

    def __init__(self, most_samples: int, least_samples: int = 1, margin: float = MARGIN) -> None:
        self.proven_samples = 0
        """The largest size that has worked and was not refused since."""
        self.failures = 0
        self._most, self._least, self._margin = most_samples, max(1, least_samples), margin
        self._low: tuple[int, float] | None = None
        self._high: tuple[int, float] | None = None
        self.budget_bytes = math.nan
        """What the device could hold when it was last read; NaN before."""
        self._ceiling: tuple[int, float] | None = None

    def learn(self, reading: Reading) -> None:
        """An iteration has worked."""
        self.proven_samples = max(self.proven_samples, reading.samples)
        self.budget_bytes = reading.budget_bytes
        if reading.samples <= 0 or not math.isfinite(reading.peak_bytes):
            return
        seen = (reading.samples, reading.peak_bytes)
        if self._low is None or seen[0] < self._low[0] or (seen[0] == self._low[0] and seen[1] < self._low[1]):
            self._low = seen
        if self._high is None or seen[0] > self._high[0] or (seen[0] == self._high[0] and seen[1] > self._high[1]):
            self._high = seen

    def failed(self, samples: int, budget_bytes: float = math.nan) -> int:
        """A batch of so many samples did not fit; the lowered bound."""
        self.failures += 1
        if self.proven_samples >= samples:  # it fitted once: the device has less memory now
            self.proven_samples = 0
        lowered = max(int(samples * BACK_OFF), min(self.proven_samples, samples - 1), self._least)
        lowered = max(min(lowered, samples - 1), 1)
        if self._ceiling is None or lowered < self._ceiling[0]:
            self._ceiling = (lowered, budget_bytes)
        return self.bound()

    def bound(self) -> int:
        """The most samples that are sure, or nearly so, to fit; never below what must be and never above what may."""
        most = min(self._most, self._by_peak(), self._by_ceiling())
        return max(most, self._least)

    def _by_peak(self) -> int:
        if self._high is None or not math.isfinite(self.budget_bytes):
            return self._most
        fixed, per_sample = self._line()
        fits = (self.budget_bytes * (1.0 - self._margin) - fixed) / per_sample if per_sample > 0 else math.inf
        one_more = self._high[0] + 1
        probed = per_sample * one_more <= self.budget_bytes * (1.0 - PROBE_SHARE * self._margin)
        if probed and not self._apart():
            fits = max(fits, one_more)
        return int(min(fits, MOST_GROWTH * max(self.proven_samples, self._high[0]), self._most))

    def _line(self) -> tuple[float, float]:
        """Fixed and per_sample, never below what the largest peak shows."""
        if self._high is None or self._low is None:
            return 0.0, 0.0
        (few, low), (many, high) = self._low, self._high
        if not self._apart():
            return 0.0, high / many
        per_sample = min((high - low) / (many - few), high / many)
        return high - per_sample * many, per_sample

    def _apart(self) -> bool:
        """Whether two sizes tell a slope."""
        if self._high is None or self._low is None:
            return False
        return self._high[0] >= SIZES_APART * self._low[0] and self._high[1] > self._low[1]

    def _by_ceiling(self) -> int:
        if self._ceiling is None:
            return self._most
        samples, budget_bytes = self._ceiling
        more = self.budget_bytes / budget_bytes if budget_bytes > 0 else math.nan
        return int(samples * more) if more >= MORE_FREE else samples
