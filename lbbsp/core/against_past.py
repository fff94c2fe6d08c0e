"""Detectors that compare a rank with what it did before, or with what was forecast: each knows its own devices.

What they expect stands still while a rank is beyond it, so a slowness that lasts stays flagged. Times in seconds at
the reference size.
"""

from typing import ClassVar

import numpy as np

from lbbsp.core.sight import Array, BoolArray, Judgement, Options, Sight, low_median

WARM_UP = 10
"""Settled reports of a rank that are learnt from before it is judged."""
_NEW_NORMAL = 0.0005
"""Share by which an expectation follows a rank that stays beyond it: half the way in 1,400 iterations."""
_FOLLOW = 0.5
"""Share by which a rank's usual size follows its size, an iteration."""


class OwnPast(Options):
    """Against what the rank itself did before; what slows all ranks alike accuses nobody."""

    def __init__(self, ranks: int, **options: float) -> None:
        super().__init__(ranks, **options)
        self._count: Array = np.zeros(ranks)
        self._expected_s: Array = np.full(ranks, np.nan)
        self._spread: Array = np.full(ranks, 0.05)
        self._usual_samples: Array = np.full(ranks, np.nan)

    def judge(self, sight: Sight) -> Judgement:
        """Judge one iteration, then learn from what was usual, whatever limit the user set."""
        seen_s = sight.reference_s
        self._prepare(sight)
        ratio = seen_s / self._expected_s
        common = max(1.0, low_median(ratio))
        slowdown = np.where(self._count >= WARM_UP, ratio / common, np.nan)
        limit = np.maximum(self.options["ratio"], 1.0 + self.options["spreads"] * self._spread)
        known = np.isfinite(seen_s)
        unusual = slowdown > np.maximum(self.defaults["ratio"], 1.0 + self.options["spreads"] * self._spread)
        self._learn(np.where(known & ~unusual, seen_s, np.nan), ratio)
        self._expected_s *= np.where(unusual, 1.0 + _NEW_NORMAL * np.minimum(slowdown - 1.0, 9.0), 1.0)
        self._count += known
        return Judgement(slowdown, limit * self._doubt(sight.samples))

    def _doubt(self, samples: Array) -> Array:
        """What limits rise by where a size has just moved far: half of what an unknown fixed cost could explain."""
        usual = np.where(np.isnan(self._usual_samples), samples, self._usual_samples)
        ratio = samples / usual
        self._usual_samples = np.where(np.isfinite(samples), usual + _FOLLOW * (samples - usual), usual)
        doubt: Array = np.sqrt(np.maximum(ratio, 1.0 / ratio))
        return np.where(np.isfinite(doubt), doubt, 1.0)

    def _prepare(self, sight: Sight) -> None:
        """Before judging."""

    def _learn(self, seen_s: Array, ratio: Array) -> None:
        """From usual times, NaN for the others, and their ratio to what was expected."""
        raise NotImplementedError


class Rolling(OwnPast):
    """Beyond the rolling mean of the rank's own times by `spreads` standard deviations, and `ratio`."""

    defaults: ClassVar[dict[str, float]] = {"ratio": 1.25, "spreads": 4.0, "memory": 50.0}

    def _learn(self, seen_s: Array, ratio: Array) -> None:
        share = np.maximum(1.0 / self.options["memory"], 1.0 / (self._count + 1.0))
        known = np.isfinite(seen_s)
        first = known & np.isnan(self._expected_s)
        self._expected_s = np.where(first, seen_s, self._expected_s)
        step = np.where(known, share * (seen_s - self._expected_s), 0.0)
        away = np.where(known & ~first, (ratio - 1.0) ** 2 - self._spread**2, 0.0)
        self._spread = np.sqrt(np.maximum(self._spread**2 + np.maximum(share, 0.02) * away, 1e-6))
        self._expected_s += step


class Robust(OwnPast):
    """Beyond the median of the rank's own recent times by `spreads` median deviations, and `ratio`."""

    defaults: ClassVar[dict[str, float]] = {"ratio": 1.25, "spreads": 5.0}
    _ROWS, _EVERY = 32, 8

    def __init__(self, ranks: int, **options: float) -> None:
        super().__init__(ranks, **options)
        self._window_s: Array = np.full((self._ROWS, ranks), np.nan)
        self._turn = 0

    def _learn(self, seen_s: Array, ratio: Array) -> None:
        row = self._turn % self._ROWS
        self._window_s[row] = np.where(np.isfinite(seen_s), seen_s, self._expected_s)
        self._turn += 1
        if self._turn % self._EVERY == 0 or self._turn < self._EVERY:
            rows = self._window_s[: min(self._turn, self._ROWS)]
            self._expected_s = _column_median(rows)
            deviation = _column_median(np.abs(rows - self._expected_s)) / self._expected_s
            self._spread = np.where(np.isfinite(deviation), np.maximum(1.4826 * deviation, 0.01), self._spread)


class History(OwnPast):
    """Against the rank's own best: the least short mean that it has shown, which rises slowly if never met again."""

    defaults: ClassVar[dict[str, float]] = {"ratio": 1.3, "spreads": 4.0}

    def __init__(self, ranks: int, **options: float) -> None:
        super().__init__(ranks, **options)
        self._short_s: Array = np.full(ranks, np.nan)

    def _learn(self, seen_s: Array, ratio: Array) -> None:
        known = np.isfinite(seen_s)
        mixed = np.where(np.isnan(self._short_s), seen_s, self._short_s + 0.2 * (seen_s - self._short_s))
        away = np.abs(seen_s / self._short_s - 1.0)
        self._spread += np.where(known & np.isfinite(away), 0.05 * (np.minimum(away, 0.3) - self._spread), 0.0)
        self._short_s = np.where(known, mixed, self._short_s)
        self._expected_s = np.fmin(1.0002 * self._expected_s, self._short_s)


class Forecast(OwnPast):
    """Against the job's predictor: beyond its forecast by `spreads` of its usual errors, and `ratio`.

    A forecast follows whatever lasts, so it stands still from the first surprise until the rank is back.
    """

    defaults: ClassVar[dict[str, float]] = {"ratio": 1.25, "spreads": 4.0}

    def __init__(self, ranks: int, **options: float) -> None:
        super().__init__(ranks, **options)
        self._surprised: BoolArray = np.zeros(ranks, dtype=np.bool_)

    def _prepare(self, sight: Sight) -> None:
        fresh = ~self._surprised & np.isfinite(sight.forecast_s)
        self._expected_s = np.where(fresh, sight.forecast_s, self._expected_s)

    def _learn(self, seen_s: Array, ratio: Array) -> None:
        known = np.isfinite(seen_s) & np.isfinite(ratio)
        away = np.minimum(np.abs(ratio - 1.0), 0.3)
        self._spread += np.where(known, 0.05 * (away - self._spread), 0.0)
        self._surprised = np.where(np.isfinite(ratio), ~known, self._surprised)


def _column_median(rows: Array) -> Array:
    """Lower median of each column; NaN sorts last and counts as large."""
    middle = (len(rows) - 1) // 2
    median: Array = np.partition(rows, middle, axis=0)[middle]
    return median
