"""A job by its id: the incarnation that runs, those that gather, and those that are over.

No sockets; the manager's clock comes in as an argument, in seconds.
"""

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from lbbsp.core.detectors import DEFAULT
from lbbsp.core.manager import BatchSizeManager, JobSpec
from lbbsp.core.rules import choose
from lbbsp.errors import BoundsError
from lbbsp.predictors import PREDICTORS
from lbbsp.predictors import make as make_predictor
from lbbsp.protocol import MOST_TOGETHER, Hello, Refused, Seen, ToWorker, Welcome
from lbbsp.service.agreement import job_spec, spoken
from lbbsp.service.live import SELDOM, Live
from lbbsp.service.past import PastJob
from lbbsp.service.roster import Roster

log = logging.getLogger(__name__)

Reply = tuple[bytes, ToWorker | Seen]
MakeSizer = Callable[[JobSpec, bool], BatchSizeManager]
"""A sizing core from what the job is and whether it only observes."""

MAX_GATHERING = 4
"""Incarnations of one job that may gather hellos at once; the oldest gives way."""
MAX_PAST = 16


def sizer_maker(predictor: str, rule: str = "auto") -> MakeSizer:
    """Jobs whose speeds are forecast by the predictor of this name, sized by the rule of this name.

    Raises:
        ConfigError: there is none of this name.
    """
    make_predictor(predictor, workers=1)
    choose(rule, (), 1, 1)

    def make(spec: JobSpec, observe_only: bool) -> BatchSizeManager:
        return BatchSizeManager(spec, predictor, observe_only=observe_only, rule=rule)

    return make


def sensors_every(predictor: str) -> int:
    """Iterations between readings of sensors that a predictor of this name needs; without need, a few a second."""
    return 1 if getattr(PREDICTORS[predictor.partition(":")[0]], "reads_sensors", True) else SELDOM


class Job:
    """All that is known of one job id.

    Args:
        name: its id.
        make_sizer: makes the sizing core of an incarnation.
        now_s: the manager's clock.
        sensors_every: iterations between readings of sensors that ranks are asked for.
        past: what is left of it from before, in a journal or from a moment ago.
        first_version: plans count from here where the past tells nothing higher.
        detectors: of slow ranks, by name.
        together: iterations that ranks may tell of in one report, where nothing changes.
    """

    def __init__(
        self, name: str, make_sizer: MakeSizer, now_s: float, sensors_every: int = 1, past: PastJob | None = None,
        first_version: int = 0, detectors: tuple[str, ...] = DEFAULT, together: int = MOST_TOGETHER,
    ) -> None:  # fmt: skip
        self.name = name
        self.live: Live | None = None
        self.heard_s = now_s
        self._make_sizer = make_sizer
        self._sensors_every, self._detectors = sensors_every, detectors
        self._together = together
        self._rosters: dict[str, Roster] = {}
        self._before = past
        """What is left of the incarnation before the one to come; None where that one runs, or there is none."""
        self._absent: BatchSizeManager | None = None
        """Of the last incarnation that had devices which the one after it lacked: they may come back."""
        self._past: deque[str] = deque(past.replaced if past else (), maxlen=MAX_PAST)
        self._version = max(first_version, past.version if past else 0)

    def roster(self, incarnation: str) -> Roster | None:
        """The hellos of an incarnation that runs or gathers; None for any other."""
        return self._rosters.get(incarnation)

    def running(self, incarnation: str) -> Live | None:
        """The incarnation, where it is the one that runs."""
        live = self.live
        return live if live is not None and live.hello.incarnation == incarnation else None

    def hello(self, hello: Hello, peer: bytes, now_s: float) -> list[Reply]:
        """Take a sound hello; replies to this peer, and to others whose standing it changes."""
        if hello.incarnation in self._past:
            return [(peer, refusal(hello, "this incarnation was replaced by a newer one: start the rank again"))]
        self.heard_s = now_s
        roster = self._gather(hello.incarnation)
        changed = roster.add(hello, peer)
        touched = sorted(roster.hellos) if hello.rank == 0 and changed else [hello.rank]
        replies = [_verdict(roster, rank, changed) for rank in touched]
        if changed and roster.complete:
            replies += self._start(roster, now_s)
        return replies

    def bye(self, incarnation: str, rank: int) -> bool:
        """A rank has ended; True when nothing is left of the job."""
        live = self.running(incarnation)
        if live is not None and rank >= live.hello.world_size:  # refused, so no part of it
            self._rosters[incarnation].remove(rank)
        elif live is not None and live.bye(rank):
            self._before, self._version, self.live = self.left(math.inf), live.version, None
            del self._rosters[incarnation]
        elif live is None:
            roster = self._rosters[incarnation]
            roster.remove(rank)
            if not roster.hellos:
                del self._rosters[incarnation]
        return not self._rosters

    def left(self, forget_s: float) -> PastJob | None:
        """What is worth keeping of this job until a time; None where it never ran."""
        live = self.live
        if live is None:
            return self._before and replace(self._before, replaced=self.replaced, forget_s=forget_s)
        state = live.told() if live.plans else None
        return PastJob(live.hellos, self.replaced, state, forget_s, live.version)

    @property
    def replaced(self) -> tuple[str, ...]:
        """Earlier incarnations, the oldest first, which are heard no more."""
        return tuple(self._past)

    def _gather(self, incarnation: str) -> Roster:
        roster = self._rosters.get(incarnation)
        if roster is None:
            roster = self._rosters[incarnation] = Roster(self._sensors_every, self._together)
            waiting = [name for name in self._rosters if not self.running(name)]
            if len(waiting) > MAX_GATHERING:
                del self._rosters[waiting[0]]
        return roster

    def _start(self, roster: Roster, now_s: float) -> list[Reply]:
        rank_0 = roster.hellos[0]
        try:
            spec = job_spec(roster.hellos)
        except BoundsError as error:
            log.error("job %r refused: %s", self.name, error)
            roster.impossible = str(error)
            return [_verdict(roster, rank, changed=False) for rank in sorted(roster.hellos)]
        sizer = self._make_sizer(spec, rank_0.mode == "observe")
        earlier, self.live = self.live, None
        if earlier is not None:
            earlier.sizer.catch_up()
            self._inherit(sizer, earlier.sizer)
            self._version = earlier.version
            if earlier.hello.incarnation != rank_0.incarnation:
                self._replace(earlier.hello.incarnation)
        elif self._before is not None:
            self._recall(self._before, roster, sizer)
        before, self._before = self._before, None
        self.live = live = Live(roster, sizer, now_s, self._version, self._detectors)
        if earlier is not None:
            live.recall(earlier.told(), earlier.sizer.job)
        elif before is not None and before.state is not None:
            live.recall(before.state, job_spec(dict(enumerate(before.hellos))))
        log.info("job %r starts: %s", self.name, _describe(rank_0, spec))
        return []

    def _recall(self, before: PastJob, roster: Roster, sizer: BatchSizeManager) -> None:
        """Go on from what is left: the same ranks as if nothing had happened, others with what their devices showed."""
        incarnation = roster.hellos[0].incarnation
        if before.incarnation != incarnation:
            self._replace(before.incarnation)
        if before.state is None:
            return
        if before.hellos == tuple(roster.hellos[rank] for rank in range(len(roster.hellos))):
            left = sizer.resume(before.state)
            how = f"goes on from what it had learnt{', but for ' + ', '.join(left) if left else ''}"
        else:
            spec = job_spec(dict(enumerate(before.hellos)))
            earlier = self._make_sizer(spec, before.hellos[0].mode == "observe")
            earlier.resume(before.state)
            self._inherit(sizer, earlier)
            how = "takes over what its devices had shown"
        log.info("job %r %s", self.name, how)

    def _inherit(self, sizer: BatchSizeManager, earlier: BatchSizeManager) -> None:
        """What devices of the incarnation before showed, and of those that were absent from it alone."""
        job = sizer.job
        new = job.absent_from(earlier.job)
        if self._absent is not None and new is not None:
            sizer.job = new
            sizer.inherit(self._absent)
            sizer.job = job
        sizer.inherit(earlier)
        absent = earlier.job.absent_from(job)
        if absent is not None:
            earlier.job, self._absent = absent, earlier

    def _replace(self, incarnation: str) -> None:
        """A newer one runs: this one is heard no more."""
        self._rosters.pop(incarnation, None)
        if incarnation not in self._past:
            self._past.append(incarnation)


def refusal(hello: Hello, reason: str) -> Refused:
    """The answer to a hello that can't be met."""
    return Refused(job=hello.job, incarnation=hello.incarnation, reason=reason)


def _verdict(roster: Roster, rank: int, changed: bool) -> Reply:
    hello = roster.hellos[rank]
    reason = roster.judge(rank)
    if reason is not None:
        log.log(
            logging.ERROR if changed else logging.DEBUG,
            "job %r: rank %d refused: %s",
            hello.job,
            rank,
            reason,
        )
        return roster.peers[rank], refusal(hello, reason)
    welcome = Welcome(
        job=hello.job,
        incarnation=hello.incarnation,
        rank=rank,
        protocol=spoken(hello),
        sensors_every=roster.sensors_every,
        together=roster.together,
    )
    return roster.peers[rank], welcome


def _describe(hello: Hello, spec: JobSpec) -> str:
    return (
        f"incarnation {hello.incarnation!r}, {hello.world_size} ranks, global batch {hello.global_batch}, "
        f"granularity {hello.granularity}, lookahead {spec.lookahead}, mode {hello.mode}"
    )
