"""What a job looks like from its reports: iteration time, waits, and how far plans lag behind reports.

Knows nothing of how plans are made. Times in seconds.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lbbsp.core.reports import Gathering

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_SHARE = 0.05
"""Of the newest iteration in what is shown: about the last 20 count."""


@dataclass(frozen=True, eq=False)
class JobStats:
    """A job at one moment. Arrays have one entry per rank."""

    iteration: int
    """Newest closed iteration; -1 before any."""
    iteration_time_s: float
    """Recent mean of own time and wait together, by the reports; 0 before any."""
    wait_share: float
    """Share of it that an average rank waited."""
    lag: int
    """Iterations from a report to the sizes that follow from it, as last seen in the reported sizes."""
    sizes: IntArray
    """Samples of each rank in the newest plan."""
    speeds: Array
    """Forecasts, samples/s at the equal share; NaN before any."""
    forecast_error_percent: float
    """Recent mean over ranks of |forecast - speed|, at the job's horizon; NaN before any."""
    predictor: str
    """What forecasts now."""
    stepped_in: int
    """Times that the last speed replaced a forecast that failed."""
    mode: str
    """`balanced`, `equal` (balancing would have lost lately) or `observe`."""
    plan_changes: int
    saved_share: float
    """Time that balanced sizes saved over the last 50 iterations, or would have, as a share of equal ones'."""


class Meter:
    """Recent iteration time, wait share and lag."""

    def __init__(self, expected_lag: int) -> None:
        self.iteration_time_s = 0.0
        self.wait_share = 0.0
        self.lag = expected_lag
        self._own_s = self._wait_s = 0.0
        self._awaited: tuple[int, IntArray] | None = None

    def expect(self, based_on_iteration: int, sizes: IntArray) -> None:
        """New sizes went out: the iteration that first shows them tells the lag."""
        self._awaited = (based_on_iteration, sizes)

    def see(self, iteration: Gathering) -> None:
        """Take the times and sizes of one closed iteration."""
        heard = iteration.draws > 0
        if not heard.any():
            return
        own_s = iteration.time_s[heard] * iteration.draws[heard]
        wait_s = float(iteration.wait_s[heard].mean())
        share = _SHARE if self.iteration_time_s else 1.0
        self._own_s += share * (float(own_s.mean()) - self._own_s)
        self._wait_s += share * (wait_s - self._wait_s)
        time_s = max(float(own_s.max()), float(own_s.mean()) + wait_s)
        self.iteration_time_s += share * (time_s - self.iteration_time_s)
        self.wait_share = self._wait_s / (self._own_s + self._wait_s)
        if self._awaited is not None and np.array_equal(iteration.samples, self._awaited[1]):
            self.lag = max(1, iteration.iteration - self._awaited[0])
            self._awaited = None
