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
WINDOW = ("own_share", "delay_share", "window_s")
"""Over the time between two readings: processor time and waits for a core for each second of own time, and own time."""
PHASES = ("prepare_s", "forward_s", "backward_s", "rest_s")
"""Parts of compute_s: from the draw to the forward pass, forward, backward, and what is left."""
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
        self.names = TIMES + sensors + WINDOW + PHASES
        self.usual: Array = np.full((len(self.names), ranks), np.nan)
        self.now: Array = np.full((len(self.names), ranks), np.nan)
        self.read_at: npt.NDArray[np.int64] = np.full(ranks, -1, dtype=np.int64)
        """Iteration of each rank's newest reading of sensors."""
        self.phased_at: npt.NDArray[np.int64] = np.full(ranks, -1, dtype=np.int64)
        """Iteration in which each rank last told its phases."""
        self._cpu, self._delay = (
            sensors.index(name) if name in sensors else None for name in ("own_cpu_cores", "run_delay_share")
        )
        self._sensors = bool(sensors)
        self._turn = -1
        self._sums: Array = np.zeros((4, ranks))
        """Since the last reading: iterations, own time, waits, own time at the reference size."""
        self._own_before_s: Array = np.full(ranks, np.nan)
        self._one: Array = np.ones(ranks)
        self._again: BoolArray = np.zeros(ranks, dtype=np.bool_)

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
        self._own_before_s = sight.time_s
        if sight.phases_s is not None:
            self._phase(sight, sight.phases_s, calm)
        if self._sensors:
            self._sums += np.where(
                np.isfinite(sight.reference_s), (self._one, sight.time_s, sight.wait_s, sight.reference_s), 0.0
            )
            if np.isfinite(sight.sensors).any():
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
        now, usual = self.now[len(TIMES) : -len(PHASES)], self.usual[len(TIMES) : -len(PHASES)]
        read: BoolArray = np.asarray(np.isfinite(sight.sensors).any(axis=1))
        if self._cpu is not None:
            read &= ~self._stale(sight.sensors[:, self._cpu], now[self._cpu])
        readings = np.where(read, np.vstack((sight.sensors.T, *self._window(sight.sensors))), np.nan)
        now[...] = np.where(np.isfinite(readings), readings, now)
        _mix(usual, np.where(calm, readings, np.nan), _READINGS)
        self.read_at[read] = sight.iteration
        self._sums *= ~read

    def _stale(self, cpu: Array, before: Array) -> BoolArray:
        """A source whose turn did not come says again, once or twice, what it said: nothing of this window."""
        again: BoolArray = (cpu == before) & ~self._again
        self._again = again
        return again

    def _window(self, sensors: Array) -> tuple[Array, Array, Array]:
        """What was got of the cores for each second of own time, waits for others taken out; own time an iteration."""
        iterations, own_s, wait_s, reference_s = self._sums
        unknown = np.full(len(own_s), np.nan)
        whole = 1.0 + wait_s / own_s
        got = unknown if self._cpu is None else sensors[:, self._cpu] * whole
        delayed = unknown if self._delay is None else sensors[:, self._delay] * whole
        return got, delayed, reference_s / iterations

    def _phase(self, sight: Sight, phases_s: Array, calm: BoolArray) -> None:
        """Phases at the reference size; of the newest iteration that told them, and usually."""
        told = np.isfinite(phases_s).all(axis=1) & np.isfinite(sight.reference_s)
        rest_s = sight.time_s - sight.input_s - phases_s.sum(axis=1)
        scale = sight.reference_s / sight.time_s
        parts_s = np.vstack((phases_s.T, np.maximum(rest_s, 0.0))) * scale
        now, usual = self.now[-len(PHASES) :], self.usual[-len(PHASES) :]
        now[...] = np.where(told, parts_s, now)
        _mix(usual, np.where(told & calm, parts_s, np.nan), _READINGS)
        self.phased_at[told] = sight.iteration

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
