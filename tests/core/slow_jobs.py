"""Jobs of simulated ranks of which some are slowed, for the tests of detectors: iterations as detectors see them."""

import numpy as np

from lbbsp.core.sight import Sight
from lbbsp.core.stragglers import Stragglers

SENSORS = ("cpu_busy_share", "own_cpu_cores", "preemptions_per_s", "psi_memory_share", "psi_io_share")


def sight(iteration, time_s, **fields):
    """An iteration from own times at the reference size."""
    time_s = np.asarray(time_s, dtype=float)
    ranks = len(time_s)
    usual = {
        "samples": np.full(ranks, 32.0),
        "reference_s": time_s,
        "forecast_s": np.full(ranks, np.nan),
        "wait_s": np.fmax.reduce(time_s) - time_s,
        "input_s": np.zeros(ranks),
        "cost": np.full(ranks, np.nan),
        "sensors": np.full((ranks, len(SENSORS)), np.nan),
    }
    return Sight(iteration=iteration, time_s=time_s, **usual | fields)


class Job:
    """Feeds a watcher with noisy times of 0.1 s; slow(rank, factor) holds from the next iteration on."""

    def __init__(self, ranks=6, detectors=("rolling",), noise=0.03, seed=0):
        self.watcher = Stragglers(ranks, SENSORS, detectors)
        self.factor = np.ones(ranks)
        self.iteration = 0
        self.events = []
        self._noise, self._rng = noise, np.random.default_rng(seed)

    def slow(self, rank, factor):
        self.factor[rank] = factor
        return self

    def run(self, iterations, **fields):
        for _ in range(iterations):
            noise = np.exp(self._noise * self._rng.standard_normal(len(self.factor)))
            time_s = 0.1 * self.factor * noise
            given = {name: value(time_s) if callable(value) else value for name, value in fields.items()}
            given.setdefault(
                "forecast_s", np.full(len(time_s), 0.1) if self.iteration else np.full(len(time_s), np.nan)
            )
            self.events += self.watcher.see(sight(self.iteration, time_s, **given))
            self.iteration += 1
        return self

    @property
    def flagged(self):
        return sorted(self.watcher.flagged)
