"""Who has lost least time lately, without thrashing: a challenger must be better by more than chance explains.

Losses are arrays (candidates, columns): a column is a worker, or the whole job. Each column has one candidate in
charge. Candidates are compared by their losses less the mean of those that take part in the same iteration, so that
what hurts them all alike decides nothing. Knows nothing of predictors or speeds; losses are shares of a time.
"""

import numpy as np
import numpy.typing as npt

from lbbsp.predictors.base import Array, IntArray

BoolArray = npt.NDArray[np.bool_]


class Contest:
    """Running losses of candidates.

    Args:
        candidates: how many compete.
        columns: in how many places.
        share: of the newest iteration in the running loss.
        sureness: in standard errors of the difference.
        paired: the error is that of differences within iterations, else as if losses were independent. It takes
            (candidates, candidates, columns), and finds small differences between candidates that err alike.
    """

    def __init__(
        self, candidates: int, columns: int, *, share: float, sureness: float, paired: bool = False
    ) -> None:  # fmt: skip
        self._share = share
        self._sureness = sureness
        self._count: Array = np.zeros(columns)
        self._loss: Array = np.zeros((candidates, columns))
        self._variance: Array = np.zeros((candidates, columns))
        self._covariance: Array | None = np.zeros((candidates, candidates, columns)) if paired else None

    def add(self, losses: Array, among: BoolArray) -> None:
        """Take in one iteration, (candidates, columns); NaN = this column had no report. among: who takes part."""
        known = np.isfinite(losses).all(0)
        self._count = self._count + known
        share = known * np.maximum(self._share, 1.0 / np.maximum(self._count, 1.0))
        share = among[:, None] * share
        away = np.where(known, losses - losses[among].mean(0), 0.0) - self._loss
        self._loss = self._loss + share * away
        self._variance = self._variance + share * ((1.0 - share) * away**2 - self._variance)
        if self._covariance is not None:
            both, shares = away[:, None] * away[None], share[:, None] * among[None, :, None]
            self._covariance = self._covariance + shares * ((1.0 - shares) * both - self._covariance)

    def kept(self, in_charge: IntArray, otherwise: IntArray) -> IntArray:
        """Who is in charge of each column, where it still loses less than `otherwise`; else that one."""
        columns = np.arange(len(in_charge))
        return np.where(self._loss[in_charge, columns] < self._loss[otherwise, columns], in_charge, otherwise)

    def put_behind(self, who: BoolArray, other: IntArray, behind: float) -> None:
        """What is known of some candidates is old: in each column they now lie so far behind the other one."""
        columns = np.arange(len(other))
        self._loss[who] = self._loss[other, columns] + behind
        self._variance[who] = self._variance[other, columns]
        if self._covariance is not None:
            self._covariance[who] = self._covariance[:, who] = 0.0

    def winners(self, in_charge: IntArray, among: BoolArray) -> IntArray:
        """Candidate for each column: the one in charge, unless another that takes part is surely better."""
        columns = np.arange(len(in_charge))
        best = np.where(among[:, None], self._loss, np.inf).argmin(0)
        gain = self._loss[in_charge, columns] - self._loss[best, columns]
        spread = self._variance[in_charge, columns] + self._variance[best, columns]
        if self._covariance is not None:
            spread = np.maximum(spread - 2.0 * self._covariance[in_charge, best, columns], 0.0)
        share = np.maximum(self._share / 2.0, 1.0 / np.maximum(self._count, 1.0))
        sure = (gain > self._sureness * np.sqrt(spread * share)) & (self._count > 4)
        return np.where(sure, best, in_charge)
