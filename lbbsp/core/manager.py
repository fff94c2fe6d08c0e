"""BatchSizeManager: reports of a job in, plans out.

Pure: no socket, clock, file or thread, so that tests, replay and simulators run what serves real jobs. Everything
per iteration is array work over all ranks. Times in seconds, sizes in samples, speeds in samples/s.
"""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from lbbsp.core.balance import Balance
from lbbsp.core.bounds import IntArray
from lbbsp.core.calm import Calm
from lbbsp.core.claims import Claiming
from lbbsp.core.curves import CurveFit
from lbbsp.core.forecast import Forecaster
from lbbsp.core.harm import DoNoHarm
from lbbsp.core.job import JobSpec, PlanMade
from lbbsp.core.late import Late
from lbbsp.core.limits import Limits
from lbbsp.core.reports import Gathering, Inbox, RejectedReport, Rejection
from lbbsp.core.rules import Adaptive, Rule, choose
from lbbsp.core.sight import Sight
from lbbsp.core.state import State, take, told
from lbbsp.core.stats import JobStats, Meter
from lbbsp.errors import ConfigError

__all__ = ["BatchSizeManager", "JobSpec", "JobStats", "PlanMade", "RejectedReport", "Rejection"]

Array = npt.NDArray[np.float64]

Closed = tuple[Gathering, Array]
MOST_BEHIND = 8
"""Iterations whose bookkeeping may wait at once; it is one pass over the ranks for each."""
MANY_RANKS = 256
"""Jobs of more ranks gain nothing from waiting: their arrays are the cost."""
_OF_THE_MOMENT = frozenset({"job", "_observe_only", "_horizon", "newest", "_behind", "_changed_at", "claiming"})
"""What is given anew, or passes with the iteration, and is not told."""


class BatchSizeManager:
    """Decides the sizes of one job.

    Args:
        job: its bounds, lookahead, sensors and devices.
        predictor: name in the registry.
        threshold: least predicted gain, as a share of the iteration time, for which a plan changes.
        observe_only: sizes stay equal; stats tell what balancing would save.
        rule: name in lbbsp.core.rules; "speed": forecast speeds; "auto": adaptive with accelerators, else speed.

    Raises:
        BoundsError: the bounds allow no plan.
        ConfigError: unknown predictor or rule, or a threshold outside 0 .. 1.
    """

    def __init__(
        self, job: JobSpec, predictor: str = "ema", threshold: float = 0.02, observe_only: bool = False,
        rule: str = "auto",
    ) -> None:  # fmt: skip
        job.bounds.check()
        if not 0 <= threshold < 1:
            raise ConfigError(f"threshold must be a share of at least 0 and below 1, got {threshold}")
        ranks, self._horizon = job.bounds.world_size, job.lookahead + 1
        self.job = job
        self._observe_only = observe_only
        self._inbox = Inbox(ranks, job.bounds.global_batch, len(job.sensors))
        self._fit = CurveFit(ranks, job.bounds.global_batch / ranks)
        self._forecaster = Forecaster(predictor, ranks, len(job.sensors), self._horizon)
        self._calm = Calm(ranks, self._horizon)
        self._late = Late(job.reads_ahead)
        self._harm = DoNoHarm()
        self._meter = Meter(self._horizon)
        self._equal = job.bounds.equal()
        self._sizes = self._equal
        self._balance = Balance(job.bounds, threshold)
        self._rule: Rule | None = choose(rule, job.device_kinds, ranks, job.bounds.global_batch)
        self.limits = Limits(job.bounds)
        self.claiming = Claiming("off" if observe_only else job.claims, ranks, job.bounds.global_batch)
        self._in_flight: deque[tuple[IntArray, bool]] = deque(maxlen=self._horizon)
        self._speeds: Array = np.full(ranks, np.nan)
        self.newest: Closed | None = None
        """The newest closed iteration and the speeds that were forecast for it."""
        self._version = self._changes = 0
        self._behind: list[Callable[[], None]] = []
        self._changed_at = -1

    def report(
        self, rank: int, iteration: int, samples: int, own_time_s: float, *, draws: int = 1, wait_s: float = 0.0,
        settled: bool = True, sensors: Sequence[float] = (), max_samples: int = 0, claimed: int = 0,
        input_s: float = 0.0, fixed_s: float = 0.0, together: int = 1, iterations: int = 1,
    ) -> PlanMade | None:  # fmt: skip
        """Take one rank's report of one iteration; a plan where it closes an iteration.

        Args:
            rank: who reports.
            iteration: of which.
            samples: of all draws together.
            own_time_s: own work, waits excluded, of all draws together.
            draws: above 1 where gradients are accumulated.
            wait_s: for the others, in the iteration before.
            settled: False where own_time_s holds one-off costs and says nothing of speed.
            sensors: readings in the order of the job's sensors; NaN where there is none.
            max_samples: the most that fit this rank's memory now; 0 says nothing.
            claimed: of the samples, those that no plan gave it.
            fixed_s: what each of its micro-batches costs beside the samples; 0: not known.
            input_s: of own_time_s, the wait for the loader.
            together: the most iterations that this rank tells of at once.
            iterations: those that times are the means of, `iteration` the last of them.

        Raises:
            RejectedReport: it is malformed, stale, a duplicate or absurd; nothing changed.
        """
        closed = self._inbox.add(
            rank, iteration, samples, own_time_s, draws, wait_s, settled, sensors, input_s, together, iterations
        )
        self.limits.say(rank, max_samples)
        self.claiming.say(rank, claimed, fixed_s)
        made = None
        for gathered in closed:
            gathered.claimed = self.claiming.take()
            made = self._finish(gathered)
        return made

    def catch_up(self) -> None:
        """Do the bookkeeping that plans left for later; the next plan does it where it is `due`."""
        behind, self._behind = self._behind, []
        for account in behind:
            account()

    @property
    def due(self) -> bool:
        """Whether bookkeeping should wait no longer: sizes changed lately, or several iterations came or have piled up.

        While sizes stay there is little to learn, and several iterations at once find the caches warm.
        """
        if self.newest is None or not self._behind:
            return False
        several = self.newest[0].iterations > 1 or len(self._behind) >= MOST_BEHIND
        still = self.newest[0].iteration - self._changed_at > self._horizon + 1
        return not still or several or self.job.bounds.world_size > MANY_RANKS

    @property
    def reads_sensors(self) -> bool:
        """Whether the predictor needs the sensors of each iteration now."""
        return self._forecaster.reads_sensors

    @property
    def trains(self) -> bool:
        """Whether the predictor makes any use of spare time."""
        return self._forecaster.trains

    def train(self, more: Callable[[], bool]) -> None:
        """Let the predictor spend spare time in small steps, while more() is true."""
        self._forecaster.train(more)

    def sight(
        self, input_s: Array | None = None, cost: Array | None = None, phases_s: Array | None = None
    ) -> Sight | None:
        """The newest closed iteration as detectors of stragglers see it; None before any. Changes nothing.

        Args:
            input_s: (ranks,), time of a draw spent waiting for the loader; default what reports said.
            cost: (ranks,), of a sample by the user's count; default not counted.
            phases_s: (ranks, 3), of a draw's own time: before forward, forward, backward; default not told.
        """
        if self.newest is None:
            return None
        self.catch_up()
        return self.sight_of(self.newest, input_s, cost, phases_s)

    def sight_of(
        self, closed: Closed, input_s: Array | None = None, cost: Array | None = None, phases_s: Array | None = None
    ) -> Sight:
        """The same of an earlier closed iteration, as `newest` gave it, by what is known now."""
        gathered, speeds = closed
        samples, time_s = gathered.sound
        reference_s = self._fit.reference_samples / self._fit.speed(samples, time_s)
        return Sight(
            iteration=gathered.iteration,
            samples=samples,
            time_s=time_s,
            reference_s=reference_s,
            forecast_s=self._fit.reference_samples / speeds,
            wait_s=gathered.wait_s / np.maximum(gathered.draws, 1.0),
            input_s=gathered.input_s if input_s is None else input_s,
            cost=np.full(len(time_s), np.nan) if cost is None else cost,
            sensors=gathered.sensors,
            phases_s=phases_s,
        )

    def stats(self) -> JobStats:
        """The job at this moment."""
        self.catch_up()
        known = self._calm.errors > 0
        error = float(self._calm.usual_error[known].mean()) if known.any() else float("nan")
        return JobStats(
            iteration=-1 if self._inbox.closed is None else self._inbox.closed,
            iteration_time_s=self._meter.iteration_time_s,
            wait_share=self._meter.wait_share,
            lag=self._meter.lag,
            sizes=self._sizes.copy(),
            speeds=self._speeds.copy(),
            forecast_error_percent=100.0 * error,
            predictor=self._forecaster.in_charge(),
            stepped_in=self._forecaster.stepped_in,
            mode=self._mode(),
            plan_changes=self._changes,
            saved_share=self._harm.saved_share(),
        )

    def inherit(self, earlier: "BatchSizeManager") -> None:
        """Take over what an earlier incarnation learnt of the same devices: curves and speeds.

        Sizes start equal all the same; call it before the first report.
        """
        mine, theirs = self.job.same_devices(earlier.job)
        if not len(mine):
            return
        last = earlier._forecaster.last[theirs]
        reference = earlier._fit.reference_samples
        self._fit.inherit(mine, earlier._fit, theirs)
        if isinstance(self._rule, Adaptive) and isinstance(earlier._rule, Adaptive):
            self._rule.fit.inherit(mine, earlier._rule.fit, theirs)
        at_reference_s: Array = np.full(self.job.bounds.world_size, np.nan)
        at_reference_s[mine] = reference / last
        samples = np.full(len(at_reference_s), reference)
        speed = self._fit.speed(samples, at_reference_s)
        self._forecaster.observe(speed, np.full((len(speed), len(self.job.sensors)), np.nan))

    def told(self) -> State:
        """All that was learnt, for a journal; arrays are not copied."""
        self.catch_up()
        return told(self, without=_OF_THE_MOMENT)

    def resume(self, state: State) -> list[str]:
        """Go on from what a core of the same job told; names what does not fit this one (another predictor, say).

        Call it before the first report.
        """
        left = take(self, state)
        if "_forecaster" in left:
            told_before = state["_forecaster"]
            last = told_before.get("last") if isinstance(told_before, dict) else None
            if isinstance(last, np.ndarray) and last.shape == self._speeds.shape and last.dtype == self._speeds.dtype:
                self._forecaster.observe(last, np.full((len(last), len(self.job.sensors)), np.nan))
        return left

    def _mode(self) -> str:
        if self._observe_only:
            return "observe"
        return "balanced" if self._harm.balanced else "equal"

    def _finish(self, gathered: Gathering) -> PlanMade:
        """Plan the iteration at the horizon from a closed one; what can wait is left to catch_up()."""
        if self.due:
            self.catch_up()
        self.newest = (gathered, self._speeds)
        samples, time_s = gathered.sound
        speed = self._fit.speed(samples, time_s)
        alike = min(gathered.iterations, self._horizon)
        self._forecaster.observe(speed, gathered.sensors, gathered.iterations)
        if self.limits.settle():
            self._balance.rebound(self.limits.bounds)
            self._equal = self.limits.bounds.equal()
        forecast = self._forecaster.forecast(gathered.sensors)
        if forecast is not None:
            self._speeds = self._calm.settle(forecast, speed, alike)
            self._late.follow(gathered.input_s, time_s)
            if self._rule is None:
                doubt = self._calm.doubt + self._late.doubt
                self._balance.update(self._fit.curves(self._speeds), doubt, np.isfinite(speed), gathered.iterations)
            else:
                bounds = self.limits.bounds
                self._balance.sizes = self._rule.propose(samples, time_s, bounds, gathered.iterations)
        if self._in_flight:  # no plan was made in between: the newest was that of all these iterations
            self._in_flight.extend([self._in_flight[-1]] * (alike - 1))
        planned = self._in_flight[0] if len(self._in_flight) == self._horizon else None
        if planned is not None and self.claiming.mode != "off":
            sizes, theta = planned[0] if planned[1] else self._equal, self._fit.theta_samples
            claimed = bool(gathered.claimed.any())
            self.claiming.follow(sizes, samples, time_s, theta, gathered.wait_s, claimed)
        made = self._publish(gathered.iteration)
        if made.changed:
            self._changed_at = gathered.iteration
        self._behind.append(lambda: self._learn(gathered, planned, made))
        return made

    def _learn(self, gathered: Gathering, planned: tuple[IntArray, bool] | None, made: PlanMade) -> None:
        """Account for a closed iteration, of which `planned` were the sizes; `made` is the plan that followed it."""
        samples, time_s = gathered.sound
        self._meter.see(gathered)
        if made.changed:
            self._meter.expect(gathered.iteration, made.sizes)
        self._fit.learn(gathered.iteration, np.where(gathered.claimed > 0, np.nan, samples), time_s)
        if planned is not None:
            self._judge(samples, time_s, *planned, gathered.iterations)

    def _judge(self, samples: Array, time_s: Array, balanced: IntArray, in_force: bool, iterations: int) -> None:
        """Compare balanced with equal sizes over so many iterations, unless it was a short last one."""
        total = samples.sum()
        short = np.isfinite(total) and total != self.job.bounds.global_batch
        if short or np.isnan(self._speeds).any():
            return
        missing = np.isnan(time_s)
        samples = np.where(missing, balanced if in_force else self._equal, samples)
        forecast_s = self._fit.curves(self._speeds).time_s(samples)
        time_s = np.where(missing, forecast_s, time_s)
        equal_s = self._fit.rescaled_s(time_s, samples, self._equal)
        balanced_s = time_s if in_force else self._fit.rescaled_s(time_s, samples, balanced)
        self._harm.judge(balanced_s, equal_s, iterations)

    def _publish(self, iteration: int) -> PlanMade:
        in_force = self._harm.balanced and not self._observe_only
        self._in_flight.append((self._balance.sizes, in_force))
        sizes = self._balance.sizes if in_force else self._equal
        changed = not np.array_equal(sizes, self._sizes)
        if changed:
            self._changes += 1
        self._sizes = sizes
        self._version += 1
        cut = self.claiming.cut
        return PlanMade(self._version, iteration, sizes.copy(), changed, cut.beta, cut.chunk)
