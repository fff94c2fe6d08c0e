"""A model must earn its place: per worker, a plain forecast steps in while the model has done clearly worse lately.

Works on log speeds as arrays (candidates, workers), of which the last row is the model's.
"""

import numpy as np

from lbbsp.predictors.base import Array, IntArray, blend

MEMORY = 0.05
"""Share of the newest iteration in the recent squared error: about the last 20 count."""

MARGIN = 1.5
"""The model is overruled when its recent squared error is so many times the best plain forecast's."""


class Guard:
    """Recent errors of the candidates, (candidates, workers)."""

    def __init__(self, candidates: int, workers: int) -> None:
        self._missed: Array = np.full((candidates, workers), np.nan)

    def skip(self) -> None:
        """Errors of long ago say nothing of now."""
        self._missed = np.full_like(self._missed, np.nan)

    def judge(self, candidates: Array, log_speed: Array) -> None:
        """Score the candidates' forecasts of an iteration against its log speeds; NaN says nothing."""
        wrong = np.expm1(np.clip(candidates - log_speed, -2.0, 2.0)) ** 2
        self._missed = blend(self._missed, wrong, MEMORY)

    def chosen(self) -> IntArray:
        """Index of the candidate to use for each worker, (workers,)."""
        missed = np.where(np.isnan(self._missed), np.inf, self._missed)
        best = missed.argmin(0)
        return np.where(MARGIN * missed.min(0) < missed[-1], best, len(missed) - 1)
