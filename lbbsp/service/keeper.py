"""Keeps a journal up to date with the table of jobs, off the path of decisions, within a budget.

What a job is goes to the journal when it begins; what it has learnt each second at first and each 10 s later on, the
job that has waited longest first, for at most SHARE of a core and BYTES_PER_S over all jobs. Times in seconds by the
manager's clock; the journal's are since the epoch, which `wall` tells.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from lbbsp.service.journal import Journal
from lbbsp.service.journal_records import Ended, Forgotten, Learnt, Started
from lbbsp.service.live import Live
from lbbsp.service.past import KEPT_AFTER_END_S, PastJob
from lbbsp.service.table import JobTable

log = logging.getLogger(__name__)

SOONEST_S, LATEST_S = 1.0, 10.0
"""Between two snapshots of a job: a tenth of its age, within these."""
SHARE = 0.01
"""Of one core, over all jobs."""
BYTES_PER_S = 2.0**20
SAVED_S = 1.0
"""Budgets are saved up for at most so long."""
VERSIONS = 2**40
"""Plans of one run of a manager; each run's versions lie beyond those of all before."""


@dataclass(eq=False)
class _Mark:
    """What the journal has of a running job."""

    live: Live
    began_s: float
    plans: int
    due_s: float


class Keeper:
    """Writes what has changed.

    Args:
        table: the jobs; what the journal holds becomes its past.
        journal: open.
        clock: seconds, monotonic.
        wall: seconds since the epoch.
    """

    def __init__(
        self, table: JobTable, journal: Journal, clock: Callable[[], float], wall: Callable[[], float] = time.time
    ) -> None:
        self.snapshots = 0
        self._table, self._journal, self._clock, self._wall = table, journal, clock, wall
        self._known: dict[str, _Mark | None] = {}
        """Jobs that the journal has; with a mark while they run."""
        self._due: deque[str] = deque()
        self._scan_s = self._free_s = clock()
        table.first_version = (journal.generation - 1) * VERSIONS
        self._recall()

    def look(self, now_s: float) -> None:
        """Write what is due; call it often, after the jobs have caught up."""
        if self._table.begun:
            self._begin(now_s)
        if now_s >= self._scan_s:
            self._scan_s = now_s + SOONEST_S
            self._end(now_s)
            self._due = self._changed(now_s)
        while self._due and now_s >= self._free_s:
            self._snapshot(self._due.popleft(), now_s)

    def close(self) -> None:
        """Write what every job knows, and close the journal."""
        now_s = self._clock()
        self._begin(now_s)
        self._end(now_s)
        for name in self._changed(float("inf")):
            self._snapshot(name, now_s)
        self._journal.close()

    def _recall(self) -> None:
        """What the journal holds becomes the table's past; what is too old is forgotten."""
        now_s, wall_s = self._clock(), self._wall()
        for name, job in past_jobs(self._journal, self._table.forget_after_s).items():
            forget_s = now_s + min(job.forget_s - wall_s, self._table.forget_after_s)
            self._table.past.keep(name, PastJob(job.hellos, job.replaced, job.state, forget_s))
            self._known[name] = None
        self._table.past.forget(now_s)
        log.info("journal %s: %d jobs are remembered", self._journal.path, len(self._table.past.jobs))

    def _begin(self, now_s: float) -> None:
        for name in self._table.begun:
            job = self._table.jobs.get(name)
            if job is None or job.live is None:
                continue
            live = job.live
            self._known[name] = _Mark(live, now_s, live.plans, now_s)
            state = live.told()
            self._journal.append(
                Started(
                    job=name,
                    incarnation=live.hello.incarnation,
                    at_s=self._since_epoch(job.heard_s),
                    hellos=live.hellos,
                    replaced=job.replaced,
                    state=state,
                )
            )
        self._table.begun.clear()

    def _end(self, now_s: float) -> None:
        """Jobs that the journal has and the table no longer runs, or no longer knows."""
        jobs, past = self._table.jobs, self._table.past.jobs
        for name, mark in list(self._known.items()):
            if name in jobs:
                continue
            if name not in past:
                self._journal.append(Forgotten(job=name))
                del self._known[name]
            elif mark is not None:
                self._ended(name, past[name], now_s)
                self._known[name] = None

    def _ended(self, name: str, left: PastJob, now_s: float) -> None:
        at_s = self._since_epoch(now_s)
        if left.state is not None:
            learnt = Learnt(job=name, incarnation=left.incarnation, at_s=at_s, state=left.state)
            self._journal.append(learnt)
        self._journal.append(Ended(job=name, at_s=at_s))

    def _changed(self, now_s: float) -> deque[str]:
        """Jobs with plans that the journal has not and whose time has come, the longest due first."""
        marks = ((mark.due_s, name) for name, mark in self._known.items() if mark is not None and _is_due(mark, now_s))
        return deque(name for _, name in sorted(marks))

    def _snapshot(self, name: str, now_s: float) -> None:
        job, mark = self._table.jobs.get(name), self._known.get(name)
        if job is None or mark is None or job.live is not mark.live:
            return
        start_s = self._clock()
        size_bytes = self._learnt(name, mark.live, job.heard_s)
        spent_s = self._clock() - start_s
        mark.plans = mark.live.plans
        mark.due_s = now_s + min(max(SOONEST_S, 0.1 * (now_s - mark.began_s)), LATEST_S)
        self._free_s = max(self._free_s, now_s - SAVED_S) + max(spent_s / SHARE, size_bytes / BYTES_PER_S)
        self.snapshots += 1

    def _learnt(self, name: str, live: Live, heard_s: float) -> int:
        state = live.told()
        at_s = self._since_epoch(heard_s)
        return self._journal.append(Learnt(job=name, incarnation=live.hello.incarnation, at_s=at_s, state=state))

    def _since_epoch(self, moment_s: float) -> float:
        return self._wall() - (self._clock() - moment_s)


def _is_due(mark: _Mark, now_s: float) -> bool:
    return mark.live.plans > mark.plans and now_s >= mark.due_s


def past_jobs(journal: Journal, forget_after_s: float) -> dict[str, PastJob]:
    """What a journal holds of each job; forget_s since the epoch."""
    started: dict[str, Started] = {}
    learnt: dict[str, Learnt] = {}
    ended: dict[str, Ended] = {}
    for record in journal.records():
        match record:
            case Started():
                started[record.job] = record
            case Learnt():
                learnt[record.job] = record
            case Ended():
                ended[record.job] = record
    return {name: _past(one, learnt.get(name), ended.get(name), forget_after_s) for name, one in started.items()}


def _past(started: Started, learnt: Learnt | None, ended: Ended | None, forget_after_s: float) -> PastJob:
    ours = learnt if learnt is not None and learnt.incarnation == started.incarnation else None
    forget_s = (ours.at_s if ours else started.at_s) + forget_after_s
    if ended is not None:
        forget_s = min(forget_s, ended.at_s + KEPT_AFTER_END_S)
    return PastJob(started.hellos, started.replaced, ours.state if ours else started.state, forget_s)
