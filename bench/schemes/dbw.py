"""Dynamic backup workers at a parameter server (DBW: Xu, Neglia and Sebastianelli 2020).

Each iteration waits for the k gradients that promise the largest loss decrease per second. Gain(k) is the usual
bound for an L-smooth loss, (eta - L eta^2 / 2) |F'|^2 - (L eta^2 / 2) V / k, with V, |F'|^2 and L estimated from the
gradients and losses that came in; T(k) is the mean time of the k-th arrival after an iteration that waited for h,
made non-decreasing in k. Late workers finish what they do ("push and wait"), so that late arrivals are timed too;
their gradients are dropped.
"""

from collections import deque
from functools import partial

import numpy as np
import numpy.typing as npt

from bench.schemes.deck import joined
from bench.schemes.model import Floats
from bench.schemes.world import Task, World

Array = npt.NDArray[np.float64]
RECENT = 5
"""Iterations over which estimates of the gradient are averaged."""
FORGET = 0.9
"""Of the weight of each earlier time."""
ALL_FIRST = 3
"""Iterations that wait for everybody, to see times."""


class Gains:
    """Expected decrease of the loss for each number of gradients."""

    def __init__(self) -> None:
        self._variance: deque[float] = deque(maxlen=RECENT)
        self._square: deque[float] = deque(maxlen=RECENT)
        self._smooth: deque[float] = deque(maxlen=RECENT)
        self._before: tuple[float, float, float, float] | None = None

    def learn(self, loss: float, gradients: Floats, step_size: float) -> None:
        """The k gradients of one iteration, their mean loss, and the step that is made with them."""
        k = len(gradients)
        mean = gradients.mean(axis=0)
        if self._before is not None:
            before, square, noise, step = self._before
            smooth = 2 * (step * square - (before - loss)) / (step**2 * (square + noise) + 1e-12)
            self._smooth.append(max(0.0, smooth))
        if k > 1:
            self._variance.append(float(((gradients - mean) ** 2).sum() / (k - 1)))
        noise = float(np.mean(self._variance)) / k if self._variance else 0.0
        square = max(0.0, float((mean**2).sum()) - noise)
        self._square.append(square)
        self._before = loss, square, noise, step_size

    def of(self, k: Array, step_size: float) -> Array:
        """Gain with k gradients; by the newest estimates."""
        square = float(np.mean(self._square))
        variance = float(np.mean(self._variance)) if self._variance else 0.0
        half = float(np.mean(self._smooth)) * step_size**2 / 2 if self._smooth else 0.0
        return (step_size - half) * square - half * variance / k


class Times:
    """Mean time until the k-th gradient of an iteration, by how many the iteration before waited for."""

    def __init__(self, workers: int) -> None:
        self._sum_s = np.zeros((workers + 1, workers + 1))
        self._count = np.zeros((workers + 1, workers + 1))

    def learn(self, waited: int, k: int, time_s: float) -> None:
        """One arrival."""
        self._sum_s[waited, k] = FORGET * self._sum_s[waited, k] + time_s
        self._count[waited, k] = FORGET * self._count[waited, k] + 1

    def of(self, waited: int) -> Array:
        """For k = 1 .. workers, non-decreasing; infinite where none was ever seen."""
        any_s, any_count = self._sum_s.sum(axis=0), self._count.sum(axis=0)
        own = self._count[waited] > 0
        count = np.where(own, self._count[waited], any_count)[1:]
        sum_s = np.where(own, self._sum_s[waited], any_s)[1:]
        seen = count > 0
        times = np.full(len(count), np.inf)
        times[seen] = rising(sum_s[seen] / count[seen], count[seen])
        return times


def rising(values: Array, weights: Array) -> Array:
    """Closest non-decreasing values, in weighted squares (pool adjacent violators)."""
    pools: list[list[float]] = []
    for value, weight in zip(values, weights, strict=True):
        pools.append([float(value), float(weight), 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            value_b, weight_b, size_b = pools.pop()
            value_a, weight_a, size_a = pools.pop()
            total = weight_a + weight_b
            pools.append([(value_a * weight_a + value_b * weight_b) / total, total, size_a + size_b])
    return np.concatenate([np.full(int(size), value) for value, _, size in pools])


class Dbw:
    """The number of gradients waited for changes every iteration."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.waited_for: list[int] = []
        """k of each iteration."""
        workers = world.setup.workers
        self._shares = world.setup.shares()
        self._gains, self._times = Gains(), Times(workers)
        self._needed = self._waited = workers
        self._version = 0
        self._started_s: list[float] = []
        self._waited_at: list[int] = []
        self._arrivals: list[int] = []
        self._taken: list[Task] = []
        self._idle = list(range(workers))

    def begin(self) -> None:
        """Start an iteration with everybody who waits for it."""
        self._started_s.append(self.world.clock.now_s)
        self._waited_at.append(self._waited)
        self._arrivals.append(0)
        idle, self._idle, self._taken = self._idle, [], []
        for worker in idle:
            self._pull(worker)

    def _pull(self, worker: int) -> None:
        self.world.clock.at(self.world.server.pull_s(), partial(self._compute, worker, self._version))

    def _compute(self, worker: int, version: int) -> None:
        share = self.world.deck.draw(worker, self._shares[worker])
        self.world.compute(worker, share, lambda task: self._ready(task, version))

    def _ready(self, task: Task, version: int) -> None:
        self.world.clock.at(self.world.server.push_s(), lambda: self._arrive(task, version))

    def _arrive(self, task: Task, version: int) -> None:
        self._arrivals[version] += 1
        time_s = self.world.clock.now_s - self._started_s[version]
        self._times.learn(self._waited_at[version], self._arrivals[version], time_s)
        if version != self._version:
            self.world.ledger.waste(task.share)
            self._pull(task.worker)
            return
        self._taken.append(task)
        self._idle.append(task.worker)
        if len(self._taken) == self._needed:
            self._update()

    def _update(self) -> None:
        world, step_size = self.world, self.world.step_size
        pairs = [world.gradient(world.weights, task.share) for task in self._taken]
        gradients = np.stack([gradient for _, gradient in pairs])
        self._gains.learn(float(np.mean([loss for loss, _ in pairs])), gradients, step_size)
        share = joined([task.share for task in self._taken])
        sizes = np.array([len(task.share) for task in self._taken])
        world.update(sizes @ gradients / sizes.sum(), share)
        world.end_iteration()
        self.waited_for.append(self._needed)
        self._waited, self._version = self._needed, self._version + 1
        self._needed = self._best(step_size)
        self.begin()

    def _best(self, step_size: float) -> int:
        """How many to wait for next."""
        workers = self.world.setup.workers
        if self._version < ALL_FIRST:
            return workers
        gain = self._gains.of(np.arange(1, workers + 1, dtype=float), step_size)
        if (gain <= 0).all():
            return workers
        return int(np.argmax(gain / self._times.of(self._waited))) + 1
