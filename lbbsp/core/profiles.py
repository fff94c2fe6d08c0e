"""What each rank usually looks like and what it looks like now: the evidence that causes are told from.

Arrays over ranks, one column a figure. What is usual is learnt while a rank is not suspicious. Knows nothing of
detectors or causes. Times in seconds, at the reference size and for one draw.
"""

import numpy as np
import numpy.typing as npt

from lbbsp.core.sight import Sight, low_median

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

TIMES = ("compute_s", "input_s", "cost", "late_s")
EVERY = 2
"""Times are looked at in each second iteration: a manager of 1,000 ranks has other work."""
_USUAL, _NOW = 0.08, 0.5
"""Share of the newest iteration in what is usual, and in what is now."""
_READINGS = 0.3
"""Share of the newest reading of sensors in what is usual: they are read every tenth iteration."""


class Profiles:
    """Usual and present figures of all ranks.

    Args:
        ranks: of the job.
        sensors: names, in the order of readings.
    """

    def __init__(self, ranks: int, sensors: tuple[str, ...]) -> None:
        self.names = TIMES + sensors + ("own_share",)
        self.usual: Array = np.full((len(self.names), ranks), np.nan)
        self.now: Array = np.full((len(self.names), ranks), np.nan)
        self.read_at: npt.NDArray[np.int64] = np.full(ranks, -1, dtype=np.int64)
        """Iteration of each rank's newest reading of sensors."""
        self._cpu = sensors.index("own_cpu_cores") if "own_cpu_cores" in sensors else None
        self._turn = -1
        self._waiting: Array = np.zeros(ranks)
        self._own_before_s: Array = np.full(ranks, np.nan)

    @property
    def timed(self) -> bool:
        """Whether times were taken from the newest iteration."""
        return self._turn % EVERY == 0

    def see(self, sight: Sight, calm: BoolArray) -> None:
        """Take one iteration; `calm` tells whose figures are usual ones."""
        self._turn += 1
        if self.timed:
            times = self._times(sight)
            _mix(self.now[: len(TIMES)], times, _NOW)
            _mix(self.usual[: len(TIMES)], np.where(calm, times, np.nan), _USUAL)
            wait_share = np.minimum(sight.wait_s / sight.time_s, 100.0)
            self._waiting += np.where(np.isfinite(wait_share), 0.3 * (wait_share - self._waiting), 0.0)
        self._own_before_s = sight.time_s
        if len(self.names) > len(TIMES) + 1 and np.isfinite(sight.sensors).any():
            self._read(sight, calm)

    def of(self, rank: int, usual: bool) -> dict[str, float]:
        """One rank's figures by name."""
        column = (self.usual if usual else self.now)[:, rank]
        return dict(zip(self.names, column.tolist(), strict=True))

    def _times(self, sight: Sight) -> Array:
        """Compute and input at the reference size, cost of a sample, and how late reductions end."""
        scale = sight.reference_s / sight.time_s
        compute_s = (sight.time_s - sight.input_s) * scale
        before_s = self._own_before_s
        last_s = np.nanmax(before_s) if np.isfinite(before_s).any() else np.nan
        late_s = sight.wait_s - (last_s - before_s)
        return np.stack((compute_s, sight.input_s * scale, sight.cost, late_s))

    def _read(self, sight: Sight, calm: BoolArray) -> None:
        read: BoolArray = np.asarray(np.isfinite(sight.sensors).any(axis=1))
        own_share = np.full(len(read), np.nan)
        if self._cpu is not None:
            own_share = sight.sensors[:, self._cpu] * (1.0 + self._waiting)
        readings = np.vstack((sight.sensors.T, own_share))
        now, usual = self.now[len(TIMES) :], self.usual[len(TIMES) :]
        now[...] = np.where(np.isfinite(readings), readings, now)
        _mix(usual, np.where(calm, readings, np.nan), _READINGS)
        self.read_at[read] = sight.iteration

    def latest(self) -> tuple[Array, Array]:
        """How much later than on other ranks reductions end on each, now and usually, seconds."""
        place = TIMES.index("late_s")
        now_s, usual_s = self.now[place], self.usual[place]
        return now_s - low_median(now_s), usual_s - low_median(usual_s)


def _mix(mean: Array, values: Array, share: float) -> None:
    """Moving averages in place; NaN changes nothing, a first value counts whole."""
    first = np.isnan(mean)
    known = np.isfinite(values)
    mean[...] = np.where(known, np.where(first, values, mean + share * (values - mean)), mean)
