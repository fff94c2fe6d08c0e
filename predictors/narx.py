"""The paper's NARX network (Chen et al., SoCC 2020), online and in residual form, for all workers at once.

Inputs: past speeds, past and current sensors; one hidden layer; horizons above 1 run it in closed loop, feeding
its forecasts back with the sensors held. It forecasts how far log speed will lie from the median of the last
three, with weights that all workers share and a small correction of each worker's own. Where it has done worse
than plain forecasts lately, the guard takes one of those. Knows no clock: `train` is told when to stop.
"""

from collections import deque
from collections.abc import Callable, Mapping

import numpy as np

from lbbsp.predictors.base import Array, Base
from lbbsp.predictors.guard import Guard
from lbbsp.predictors.inputs import History, Inputs, compressed
from lbbsp.predictors.network import Network
from lbbsp.predictors.rows import RowBuffer

LAGS = 2
SHARES = (0.3, 0.05)
MOST = 6.0
"""Targets and forecasts lie within so many usual steps of log speed."""

OWN_RATE = 0.02
"""How fast a worker's own correction follows what the shared weights miss."""

NEEDED = 64
"""Rows remembered before training starts."""


class Narx(Base):
    """hidden: units of the hidden layer; seed: draws first weights and batches.

    residual=False forecasts the distance from the long-run mean instead (the paper's absolute form, for ablation).
    """

    name = "narx"

    def __init__(
        self,
        workers: int,
        sensors: int = 0,
        *,
        horizon: int = 1,
        hidden: int = 8,
        seed: int = 0,
        residual: bool = True,
    ) -> None:
        super().__init__(workers, sensors, horizon=horizon)
        self.residual = residual
        self._inputs = Inputs(workers, sensors, LAGS, SHARES)
        self._network = Network(self._inputs.width, hidden, seed)
        self._remembered = RowBuffer(workers, self._inputs.width, seed)
        self._guard = Guard(len(SHARES) + 2, workers)
        self._own: Array = np.zeros(workers)
        self._rows: Array | None = None
        self._following: Array = np.full(workers, np.nan)
        self._seen: Array | None = None
        self._candidates: deque[Array] = deque(maxlen=horizon)

    def train(self, more: Callable[[], bool]) -> None:
        """One step of Adam on a batch of remembered iterations at a time, while more() is true."""
        while self._remembered.count >= NEEDED and more():
            self._network.fit(*self._remembered.batch())

    def learnt(self) -> dict[str, Array]:
        """What all workers share, as arrays that np.savez takes: weights and the scales of inputs."""
        return self._network.learnt() | self._inputs.scales()

    def start_from(self, learnt: Mapping[str, Array]) -> None:
        """Take over what an earlier run learnt; histories and own corrections stay.

        Raises:
            ConfigError: it comes from a network of another shape (other sensors, other hidden units).
        """
        self._network.start_from(learnt)
        self._inputs.start_from(learnt)

    def skip(self) -> None:
        """See Base: network and remembered rows stay."""
        super().skip()
        self._inputs.skip()
        self._guard.skip()
        self._candidates.clear()
        self._rows = None

    def _learn(self, speed: Array, sensors: Array) -> None:
        log_speed = np.log(speed)
        if self._rows is not None:
            self._compare(self._rows, log_speed)
        readings = compressed(sensors)
        self._inputs.learn(log_speed, readings)
        self._rows = self._inputs.rows(self._inputs.history, readings)
        self._following = self._next(self._inputs.history, self._rows)
        self._candidates.append(self._all(self._following, readings, self.horizon))
        self._seen = sensors

    def _compare(self, rows: Array, log_speed: Array) -> None:
        history, step, forecast = self._inputs.history, self._inputs.step, self._following
        if len(self._candidates) == self.horizon:
            self._guard.judge(self._candidates[0], log_speed)
        target = np.clip((log_speed - self._anchor(history)) / step, -MOST, MOST)
        self._remembered.add(rows, target - self._own)
        self._own += OWN_RATE * np.clip(np.nan_to_num((log_speed - forecast) / step), -1.0, 1.0)

    def _anchor(self, history: History) -> Array:
        longest: Array = history.means[-1]
        return history.steady if self.residual else longest

    def _next(self, history: History, rows: Array) -> Array:
        change = np.clip(self._network.output(rows) + self._own, -MOST, MOST)
        inputs = self._inputs
        return np.clip(self._anchor(history) + inputs.step * change, inputs.slowest, inputs.fastest)

    def _all(self, following: Array, readings: Array, horizon: int) -> Array:
        """Log speed at the horizon by each candidate, (candidates, workers); the closed loop's is the last."""
        now = history = self._inputs.history
        for _ in range(horizon - 1):
            history = history.after(following)
            following = self._next(history, self._inputs.rows(history, readings))
        return np.concatenate((now.newest[None], now.means, following[None]))

    def _forecast(self, sensors: Array, horizon: int) -> Array:
        if sensors is self._seen and horizon == self.horizon:
            candidates = self._candidates[-1]
        else:
            readings = compressed(sensors)
            following = self._next(self._inputs.history, self._inputs.rows(self._inputs.history, readings))
            candidates = self._all(following, readings, horizon)
        chosen: Array = candidates[self._guard.chosen(), np.arange(self.workers)]
        return np.exp(chosen)
