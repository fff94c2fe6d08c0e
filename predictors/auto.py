"""Picks, for each worker, the predictor that has lost least time lately, the equal split among them.

Time lost is what counts: sizes in proportion to forecasts, the slowest worker's time over the clairvoyant one. The
job as a whole elects one predictor by it; a worker takes another where that alone would surely have made the job
faster, and for as long as it does. A smooth maximum (p-norm) judges the latter, so that every worker that comes
near the slowest has a say. Members that read sensors cost most: they take part in bouts, while they win enough.
"""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from lbbsp.errors import ConfigError
from lbbsp.predictors.arima import Arima
from lbbsp.predictors.arx import Arx
from lbbsp.predictors.base import Array, Base, IntArray, filled
from lbbsp.predictors.bouts import WORTH, Bouts
from lbbsp.predictors.contest import BoolArray, Contest
from lbbsp.predictors.ema import Ema
from lbbsp.predictors.last import Last
from lbbsp.predictors.mean import Mean
from lbbsp.predictors.narx import Narx

MEMBERS: dict[str, type[Base]] = {
    "last": Last,
    "ema": Ema,
    "mean": Mean,
    "arima": Arima,
    "arx": Arx,
    "narx": Narx,
}
USUAL = ("ema", "last", "mean", "arx", "narx")
"""The first is in charge at the start."""

EQUAL = "equal"
POWER = 12.0
MOST_LOST = 4.0
WARM_UP = 3
"""Iterations that a model must have seen again after a rest, beside its horizon."""


class Auto(Base):
    """members: names of the predictors to pick from, the equal split always among them."""

    name = "auto"

    def __init__(
        self,
        workers: int,
        sensors: int = 0,
        *,
        horizon: int = 1,
        members: Sequence[str] | str | None = None,
        background: bool = True,
    ) -> None:
        super().__init__(workers, sensors, horizon=horizon)
        if isinstance(members, str):
            members = [members]
        if members is None:
            members = USUAL
        if unknown := set(members) - set(MEMBERS):
            raise ConfigError(f"auto can't pick from {sorted(unknown)}; known: {', '.join(MEMBERS)}")
        self._names = (*members, EQUAL)
        options = {"arima": {"background": background}}
        self._members = [MEMBERS[name](workers, sensors, horizon=horizon, **options.get(name, {})) for name in members]
        self._made: deque[tuple[Array, Array]] = deque(maxlen=horizon)
        self._newest: dict[str, Array] = {}
        """What was forecast when learning, from which readings; a dict, so that no journal holds it."""
        self._job = Contest(len(self._names), 1, share=0.04, sureness=2.0, paired=True)
        self._each = Contest(len(self._names), workers, share=0.02, sureness=2.0)
        self._elected = np.zeros(1, dtype=np.intp)
        self._chosen = np.zeros(workers, dtype=np.intp)
        self._plain: BoolArray = np.array([*(not member.reads_sensors for member in self._members), True])
        """Candidates that cost next to nothing."""
        self._plain_elected = np.full(1, self._plain.argmax())
        self.reads_sensors = not self._plain.all()
        self._bouts = Bouts(horizon + WARM_UP) if self._plain[:-1].any() and not self._plain.all() else None

    def in_charge(self) -> tuple[str, ...]:
        """Name of the member that forecasts each worker now."""
        return tuple(self._names[index] for index in self._chosen)

    def train(self, more: Callable[[], bool]) -> None:
        """Every member that takes part gets its share of the steps, in turn."""
        for member in self._active():
            member.train(more)

    @property
    def trains(self) -> bool:
        """Whether a member that takes part makes use of spare time."""
        return any(type(member).train is not Base.train for member in self._active())

    def expect_mean_of(self, iterations: int) -> None:
        """Members that cost much are left out where the job rests."""
        if self._bouts is not None:
            judged, rested = self._bouts.judged, self._bouts.resting
            self._bouts.expect_mean_of(iterations)
            self._changed(self._bouts, judged, rested)

    @property
    def _resting(self) -> bool:
        return self._bouts is not None and self._bouts.resting

    def _active(self) -> list[Base]:
        return [member for member in self._members if not (self._resting and member.reads_sensors)]

    def _learn(self, speed: Array, sensors: Array) -> None:
        if len(self._made) == self.horizon:
            self._judge(*self._made[0], speed)
        for member in self._active():
            member.observe(speed, sensors)
        forecasts = self._forecasts(sensors, self.horizon)
        self._made.append((forecasts, picked(forecasts, self._chosen)))
        self._newest = {"sensors": sensors, "forecasts": forecasts}

    def _judge(self, forecasts: Array, used: Array, speed: Array) -> None:
        known = np.isfinite(speed)
        if np.count_nonzero(known) < 2:
            return
        if self._bouts is not None and self._bouts.skimming:
            self._step(self._bouts, 0.0)
            return
        among = self._plain if self._bouts is not None and not self._bouts.judged else np.ones_like(self._plain)
        lost = np.full(forecasts.shape, np.nan)
        lost[:, known] = lost_by_worker(forecasts[:, known], used[known], speed[known])
        lost_by_each = lost_by_job(np.concatenate((forecasts, used[None]))[:, known], speed[known])
        self._job.add(lost_by_each[:-1, None], among)
        self._each.add(lost, among)
        before, self._elected = self._elected, self._job.winners(self._elected, among)
        elected = np.broadcast_to(self._elected, self.workers)
        own = np.where(self._chosen == before, elected, self._each.kept(self._chosen, elected))
        self._chosen = self._each.winners(own, among)
        if self._bouts is not None:
            self._weigh(self._bouts, lost_by_each)

    def _weigh(self, bouts: Bouts, lost: Array) -> None:
        """Whether members that cost much go on. lost: by each candidate, and last by what was used."""
        won = float(lost[self._plain_elected[0]] - lost[-1])
        self._plain_elected = self._job.winners(self._plain_elected, self._plain)
        self._step(bouts, won)

    def _step(self, bouts: Bouts, won: float) -> None:
        judged, rested = bouts.judged, bouts.resting
        bouts.step(won)
        self._changed(bouts, judged, rested)

    def _changed(self, bouts: Bouts, judged: bool, rested: bool) -> None:
        """Follow the bouts: members that cost much may have begun or ceased to rest, or to be judged."""
        self.reads_sensors = bouts.reading
        if rested and not bouts.resting:
            for member in self._members:
                if member.reads_sensors:
                    member.skip()
        if judged and not bouts.judged:
            self._elected, self._chosen = (
                np.where(self._plain[chosen], chosen, self._plain_elected) for chosen in (self._elected, self._chosen)
            )
        elif bouts.judged and not judged:
            self._job.put_behind(~self._plain, self._elected, WORTH)
            self._each.put_behind(~self._plain, self._chosen, WORTH)

    def _forecasts(self, sensors: Array, horizon: int) -> Array:
        """By each candidate, (candidates, workers); those that rest repeat the first."""
        made = {id(member): member.predict(sensors, horizon) for member in self._active()}
        rows = [made.get(id(member), next(iter(made.values()))) for member in self._members]
        typical = np.mean(rows[self._names.index("mean")] if "mean" in self._names else rows[0])
        return np.stack([*rows, np.full(self.workers, typical)])

    def _forecast(self, sensors: Array, horizon: int) -> Array:
        """What was made of these very readings when learning is not made again."""
        if horizon == self.horizon and self._newest.get("sensors") is sensors:
            return picked(self._newest["forecasts"], self._chosen)
        return picked(self._forecasts(sensors, horizon), self._chosen)


def picked(forecasts: Array, chosen: IntArray) -> Array:
    """From (candidates, workers), the chosen candidate's forecast of each worker."""
    return filled(np.asarray(forecasts[chosen, np.arange(len(chosen))]))


def lost_by_job(forecasts: Array, speed: Array) -> Array:
    """Time over the clairvoyant plan's, less 1, were each candidate in charge of all workers; (candidates,)."""
    lost = (forecasts / speed).max(1) * speed.sum() / forecasts.sum(1) - 1.0
    return np.asarray(np.minimum(lost, MOST_LOST))


def lost_by_worker(forecasts: Array, used: Array, speed: Array) -> Array:
    """The same, smoothed, were each candidate in charge of one worker and all others as used."""
    late = np.minimum(used / speed, MOST_LOST) ** POWER
    others = np.maximum(late.sum() - late, 0.0)
    latest = (others + np.minimum(forecasts / speed, MOST_LOST) ** POWER) ** (1.0 / POWER)
    lost: Array = latest * speed.sum() / (used.sum() - used + forecasts)
    return lost
