"""Ranks that exist only as numbers: hidden fixed costs, speeds over time, noise; the manager decides their sizes."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from lbbsp.core.manager import BatchSizeManager, JobSpec
from lbbsp.core.sizing import Bounds, Curves, allocate


@dataclass
class Cluster:
    """theta: fixed cost in samples; speed(k) -> samples/s of each rank in iteration k; noise: sigma of log time."""

    theta: np.ndarray
    speed: object
    noise: float = 0.0
    seed: int = 0
    rng: np.random.Generator = field(init=False)

    def __post_init__(self):
        self.theta = np.asarray(self.theta, dtype=float)
        self.rng = np.random.default_rng(self.seed)

    def times_s(self, iteration, sizes):
        noise = np.exp(self.noise * self.rng.standard_normal(len(self.theta)))
        return (self.theta + sizes) / np.asarray(self.speed(iteration)) * noise, noise

    def curves(self, iteration):
        slope = 1.0 / np.asarray(self.speed(iteration), dtype=float)
        return Curves(np.zeros(len(slope)), self.theta * slope, slope)


@dataclass
class Run:
    """Iteration times under the manager's sizes, the equal split, and the best sizes for the true speeds."""

    time_s: np.ndarray
    equal_s: np.ndarray
    best_s: np.ndarray
    sizes: np.ndarray
    changes: np.ndarray

    def over_best(self, start, stop=None):
        return self.time_s[start:stop].sum() / self.best_s[start:stop].sum()

    def over_equal(self, start=0, stop=None):
        return self.time_s[start:stop].sum() / self.equal_s[start:stop].sum()


def bounds_of(ranks, global_batch):
    return Bounds(global_batch, np.ones(ranks), np.full(ranks, global_batch))


def run(cluster, iterations, global_batch=None, lookahead=0, manager=None, **options):
    ranks = len(cluster.theta)
    bounds = bounds_of(ranks, global_batch or 64 * ranks)
    manager = manager or BatchSizeManager(JobSpec(bounds, lookahead), **options)
    plans = deque([bounds.equal()] * (lookahead + 1))
    rows, equal = [], bounds.equal()
    for k in range(iterations):
        sizes = plans.popleft()
        own_s, noise = cluster.times_s(k, sizes)
        made = None
        for rank in range(ranks):
            made = manager.report(
                rank, k, int(sizes[rank]), float(own_s[rank]), wait_s=float(own_s.max() - own_s[rank])
            )
        plans.append(made.sizes)
        curves = cluster.curves(k)
        best = allocate(curves, bounds)
        rows.append(
            (
                own_s.max(),
                (curves.time_s(equal) * noise).max(),
                (curves.time_s(best) * noise).max(),
                sizes,
                made.changed,
            )
        )
    columns = list(zip(*rows, strict=True))
    return Run(*(np.array(column) for column in columns)), manager
