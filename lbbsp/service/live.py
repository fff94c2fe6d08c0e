"""One running incarnation of a job: reports in, plans out, who has fallen silent and who is slow.

No sockets; times by the manager's clock come in as arguments, in seconds.
"""

import math
from collections import deque

import numpy as np
import numpy.typing as npt

from lbbsp.core.job import JobSpec
from lbbsp.core.manager import MOST_BEHIND, BatchSizeManager, Closed, JobStats, PlanMade, RejectedReport
from lbbsp.core.state import State
from lbbsp.core.stragglers import DEFAULT, Event, Stragglers
from lbbsp.protocol import Hello, Plan, Report
from lbbsp.service.notes import Notes
from lbbsp.service.roster import Roster
from lbbsp.service.silence import Silence

Array = npt.NDArray[np.float64]
MOST_EVENTS = 256
SELDOM = 10
"""Iterations between readings of sensors that no predictor asks for: they still say why a rank is slow."""
_STRAGGLERS = "stragglers"


class Live:
    """A job with all its ranks there.

    Args:
        roster: complete; its peers are looked up there, since a rank may come back through another one.
        sizer: decides the sizes.
        now_s: the manager's clock.
        version: plans count on from here.
        detectors: of slow ranks, by name.
    """

    def __init__(
        self, roster: Roster, sizer: BatchSizeManager, now_s: float, version: int = 0,
        detectors: tuple[str, ...] = DEFAULT,
    ) -> None:  # fmt: skip
        self.hello: Hello = roster.hellos[0]
        self.hellos = tuple(roster.hellos[rank] for rank in range(self.hello.world_size))
        """As this incarnation began, in order of rank."""
        self.plans = 0
        self.version = version
        """Of the newest plan."""
        self.sizer = sizer
        self.silence = Silence(self.hello.world_size, now_s)
        self.started_s = now_s
        self.newest_iteration = -1
        self.machines = tuple(roster.hellos[rank].machine for rank in range(self.hello.world_size))
        self.stragglers = Stragglers(self.hello.world_size, self.hello.sensors, detectors)
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        """Of stragglers, not told yet."""
        self._notes = Notes(self.hello.world_size)
        self._unseen: deque[tuple[Closed, Array | None, Array | None]] = deque(
            maxlen=4 * MOST_BEHIND if self.stragglers.watches else 1
        )
        self._roster = roster
        self._recorded = roster.together == 1
        """Then each iteration is told of by itself, with its sensors."""
        self._columns = {
            rank: _columns(self.hello.sensors, hello.sensors)
            for rank, hello in roster.hellos.items()
            if hello.sensors != self.hello.sensors
        }

    def told(self) -> State:
        """What the sizing core and the detectors have learnt, for a journal."""
        self.see()
        return self.sizer.told() | {_STRAGGLERS: self.stragglers.told()}

    def recall(self, state: State, earlier: JobSpec) -> None:
        """Let the detectors go on from what was told of the same devices, where times are at the same size."""
        mine, bounds = self.sizer.job, earlier.bounds
        if mine.bounds.global_batch * bounds.world_size == bounds.global_batch * mine.bounds.world_size:
            self.stragglers.inherit(state.get(_STRAGGLERS), *mine.same_devices(earlier))

    def stats(self) -> JobStats:
        """Of the sizing core."""
        return self.sizer.stats()

    def report(self, report: Report, now_s: float) -> Plan | None:
        """Take one report of a rank that is known; a plan where it completes an iteration.

        Raises:
            RejectedReport: it is stale, a duplicate or absurd; nothing changed.
        """
        made = self.sizer.report(
            report.rank,
            report.iteration,
            report.samples,
            report.own_time_s,
            draws=report.draws,
            wait_s=report.wait_s,
            settled=report.settled,
            sensors=self.readings(report),
            max_samples=report.max_samples,
            claimed=report.claimed,
            fixed_s=report.fixed_s,
            input_s=report.input_s,
            together=report.together,
            iterations=report.iterations,
        )
        self.silence.heard(report.rank, report.iteration, now_s)
        self.newest_iteration = max(self.newest_iteration, report.iteration)
        self._notes.take_in(report)
        if made is None:
            return None
        if self.sizer.newest is not None:
            self._unseen.append((self.sizer.newest, *self._notes.of(made.based_on_iteration)))
        return self._plan(made)

    def catch_up(self) -> None:
        """What could wait until the newest plan had left: bookkeeping, and a look for stragglers, where due."""
        if self.sizer.due:
            self.sizer.catch_up()
        elif len(self._unseen) < MOST_BEHIND:
            return
        if self.stragglers.watches:
            self.see()

    def see(self) -> None:
        """Look for stragglers in the iterations that have closed since the last look."""
        while self._unseen:
            closed, cost, phases_s = self._unseen.popleft()
            if closed[0].iteration > self.stragglers.iteration:
                self.events.extend(self.stragglers.see(self.sizer.sight_of(closed, None, cost, phases_s)))

    def look(self, now_s: float) -> None:
        """Take note of who is slow or silent; about once a second, after `silence` was looked at."""
        self.see()
        self.events.extend(self.stragglers.hear(self.silence.silent, now_s - self.silence.heard_s))

    def bye(self, rank: int) -> bool:
        """This rank has ended; True when all have."""
        self.silence.left[rank] = True
        return bool(self.silence.left.all())

    def _plan(self, made: PlanMade) -> Plan:
        self.plans += 1
        self.version += 1
        return Plan(
            job=self.hello.job,
            incarnation=self.hello.incarnation,
            version=self.version,
            based_on_iteration=made.based_on_iteration,
            sizes=tuple(made.sizes.tolist()),
            beta=made.beta,
            chunk=made.chunk,
            sensors_every=0 if self._recorded or self.sizer.reads_sensors else SELDOM,
        )

    def readings(self, report: Report) -> tuple[float, ...]:
        """Of a report, in rank 0's order of sensors; NaN for what this rank does not have."""
        wanted = len(self.hello.sensors)
        columns = self._columns.get(report.rank)
        if columns is None:
            columns = tuple(range(wanted)) if len(report.sensors) != wanted else None
        if columns is None:
            return report.sensors
        has = len(report.sensors)
        return tuple(report.sensors[c] if 0 <= c < has else math.nan for c in columns)


def _columns(wanted: tuple[str, ...], given: tuple[str, ...]) -> tuple[int, ...]:
    place = {name: column for column, name in enumerate(given)}
    return tuple(place.get(name, -1) for name in wanted)


__all__ = ["Live", "RejectedReport"]
