"""Replays a recording through the manager that serves real jobs, and through what it is compared with.

Plan k knows only what was sent with report k - 1 - lookahead. Forecasts are scored on the recorded iterations,
sizes by the time that they would have taken. Knows nothing of files or tables. Times in seconds.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import numpy as np

from lbbsp.core.manager import BatchSizeManager, JobSpec, RejectedReport
from lbbsp.core.sizing import Bounds, Curves, allocate
from lbbsp.predictors import make
from lbbsp.world import Array, Clock, IntArray, Mask, World, clock

STATIC_AFTER = 20
"""Iterations after which `static` fixes its sizes."""

PLAIN = ("equal", "static", "clairvoyant")
"""Rows that need no predictor."""


class Policy(Protocol):
    """Decides sizes, one iteration after the other."""

    def sizes(self, world: Clock) -> IntArray:
        """Of the coming iteration. Only the clairvoyant looks at the world."""

    def heard(self, iteration: int, sizes: IntArray, time_s: Array, sensors: Array, known: Mask) -> None:
        """What the workers reported of it."""


class Equal:
    """The equal split, always."""

    def __init__(self, bounds: Bounds) -> None:
        self._equal = bounds.equal()

    def sizes(self, world: Clock) -> IntArray:
        """The equal split."""
        return self._equal

    def heard(self, iteration: int, sizes: IntArray, time_s: Array, sensors: Array, known: Mask) -> None:
        """Nothing to learn."""


class Static:
    """Equal at first, then for ever in proportion to the mean speeds of the first iterations."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._sizes = bounds.equal()
        self._spent_s: Array = np.zeros(bounds.world_size)

    def sizes(self, world: Clock) -> IntArray:
        """As fixed, or equal before."""
        return self._sizes

    def heard(self, iteration: int, sizes: IntArray, time_s: Array, sensors: Array, known: Mask) -> None:
        """Add up the times of the first iterations."""
        self._spent_s += time_s * (iteration < STATIC_AFTER)
        if iteration == STATIC_AFTER - 1:
            nothing = np.zeros(len(sizes))
            self._sizes = allocate(Curves(nothing, nothing, self._spent_s / sizes / STATIC_AFTER), self._bounds)


class Clairvoyant:
    """The best sizes for what comes; with an error, for speeds off by that share at random."""

    def __init__(self, bounds: Bounds, error: float = 0.0, seed: int = 0) -> None:
        self._bounds, self._error = bounds, error
        self._random = np.random.default_rng(seed)

    def sizes(self, world: Clock) -> IntArray:
        """The exact min-max allocation."""
        curves = world.curves()
        wrong = np.exp(self._random.normal(0.0, np.log1p(self._error), self._bounds.world_size))
        return allocate(Curves(curves.flat_s, curves.offset_s * wrong, curves.slope_s * wrong), self._bounds)

    def heard(self, iteration: int, sizes: IntArray, time_s: Array, sensors: Array, known: Mask) -> None:
        """It knew."""


class Managed:
    """The manager of real jobs with a predictor; `lookahead` plans are under way at any time."""

    def __init__(
        self, bounds: Bounds, predictor: str, sensors: tuple[str, ...], lookahead: int, train_steps: int
    ) -> None:
        self._manager = BatchSizeManager(JobSpec(bounds, lookahead, sensors), predictor)
        self._plans = deque([bounds.equal()] * (lookahead + 1))
        self._train_steps = train_steps

    def sizes(self, world: Clock) -> IntArray:
        """The plan that has arrived."""
        return self._plans[0]

    def heard(self, iteration: int, sizes: IntArray, time_s: Array, sensors: Array, known: Mask) -> None:
        """Hand the reports to the manager; its plan is used lookahead iterations later."""
        plan = self._plans[-1]
        for rank in np.flatnonzero(known).tolist():
            try:
                made = self._manager.report(
                    rank, iteration, int(sizes[rank]), float(time_s[rank]), sensors=sensors[rank].tolist()
                )
            except RejectedReport:
                continue
            plan = made.sizes if made else plan
        self._manager.train(steps(self._train_steps))
        self._plans.append(plan)
        self._plans.popleft()


@dataclass(frozen=True, eq=False)
class Played:
    """Iteration times of a replay, and the share of the recording that had passed when each began."""

    time_s: Array
    progress: Array

    def mean_s(self, tested_from: float) -> float:
        """Mean iteration time over the tested part."""
        return float(self.time_s[self.progress >= tested_from].mean())


def play(world: World, bounds: Bounds, policy: Policy, tell: Callable[[float], object] = float) -> Played:
    """The whole job under a policy; tell() hears the share that has passed."""
    now = clock(world, bounds)
    times_s, progress = [], []
    while not now.over():
        sizes = policy.sizes(now)
        progress.append(now.progress())
        time_s, sensors, known = now.run(sizes)
        times_s.append(float(time_s.max()))
        policy.heard(len(times_s) - 1, sizes, time_s, sensors, known)
        tell(now.progress())
    return Played(np.array(times_s), np.array(progress))


def steps(count: int) -> Callable[[], bool]:
    """True so many times: a budget for train() that does not depend on the machine."""
    left = iter(range(count))
    return lambda: next(left, None) is not None


@dataclass(frozen=True, eq=False)
class Forecasts:
    """What a predictor said of each recorded iteration beforehand, (iterations, workers), NaN = nothing yet."""

    speed: Array
    us_per_iteration: float
    """Median time to observe and predict; training and fits apart."""

    def rmse_percent(self, world: World, begin: float, end: float = 1.0) -> float:
        """Root mean square error over that part of the recording, in % of the mean speed there; NaN if empty."""
        part = slice(int(begin * world.iterations), int(end * world.iterations))
        truth = np.where(world.known, world.speed, np.nan)[part]
        wrong = (self.speed[part] - truth) ** 2
        if not np.isfinite(wrong).any():
            return float("nan")
        return float(100.0 * np.sqrt(np.nanmean(wrong)) / np.nanmean(truth))


def forecast(
    world: World,
    predictor: str,
    *,
    horizon: int = 1,
    train_steps: int = 0,
    until: float = 1.0,
    tell: Callable[[float], object] = float,
) -> Forecasts:
    """Walk forward over the recorded iterations, at most `until` that share of them."""
    model = make(predictor, world.workers, world.sent.shape[2], horizon=horizon)
    speed = np.where(world.known, world.speed, np.nan)
    said = np.full_like(speed, np.nan)
    last = max(int(until * world.iterations) - horizon, 0)
    spent_s = np.zeros(last)
    for now in range(last):
        begin_s = perf_counter()
        model.observe(speed[now], world.sent[now])
        said[now + horizon] = model.predict(world.sent[now], horizon)
        spent_s[now] = perf_counter() - begin_s
        model.train(steps(train_steps))
        tell((now + 1) / last)
    return Forecasts(said, float(1e6 * np.median(spent_s)) if last else float("nan"))
