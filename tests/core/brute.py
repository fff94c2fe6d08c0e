"""Brute force over every allowed plan, for small cases."""

import numpy as np

from lbbsp.core.sizing import Bounds, Curves


def best_time_s(curves: Curves, bounds: Bounds) -> float:
    """Least possible max_i t_i(x_i): dynamic programming over ranks and units, exact, no bisection."""
    unit = bounds.granularity
    total = bounds.global_batch // unit
    best = np.full(total + 1, np.inf)
    best[0] = 0.0
    for rank in range(bounds.world_size):
        allowed = [
            units for units in range(total + 1) if bounds.min_samples[rank] <= units * unit <= bounds.max_samples[rank]
        ]
        mine = curves.take(np.array([rank]))
        times = {units: float(mine.time_s(np.array([units * unit]))[0]) for units in allowed}
        following = np.full(total + 1, np.inf)
        for units, time_s in times.items():
            reachable = np.maximum(best[: total + 1 - units], time_s)
            following[units:] = np.minimum(following[units:], reachable)
        best = following
    return float(best[total])
