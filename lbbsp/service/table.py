"""All jobs of a manager: frames in, replies out. What is malformed or foreign is counted and changes nothing.

No sockets; the manager's clock comes in as an argument, in seconds. A peer is the id that the ROUTER gives to
a connection; a rank is heard only through the peer that said hello for it.
"""

import logging
from collections.abc import Callable

import msgspec

from lbbsp.core.detectors import DEFAULT
from lbbsp.core.manager import RejectedReport
from lbbsp.protocol import (
    MOST_TOGETHER,
    PROTOCOL,
    UNREADABLE,
    Bye,
    Hello,
    Look,
    Refused,
    Report,
    ToManager,
    Unknown,
    Welcome,
    decode_to_manager,
)
from lbbsp.service.admission import Admission
from lbbsp.service.agreement import unsound
from lbbsp.service.job import Job, MakeSizer, Reply, refusal
from lbbsp.service.keys import ANYBODY, Caller
from lbbsp.service.live import Live
from lbbsp.service.looks import Looks
from lbbsp.service.past import Past
from lbbsp.service.rejections import Rejections
from lbbsp.service.rights import not_theirs, only_theirs

log = logging.getLogger(__name__)

MAX_PEERS_REMINDED = 4_096
REMIND_EVERY_S = 0.2
QUIET_S = 10.0
"""A job that has told nothing for so long waits for no plan."""
FORGET_AFTER_S = 86_400.0
"""A job that nobody speaks for is forgotten after this time."""


class Envelope(msgspec.Struct, frozen=True):
    """What can be read of a hello that this version can't take."""

    type: str
    job: str
    incarnation: str
    protocol: int = 0


_read_envelope = msgspec.msgpack.Decoder(Envelope).decode


class JobTable:
    """Jobs by id.

    Args:
        make_sizer: makes the sizing core of a job that starts.
        sensors_every: iterations between readings of sensors that ranks are asked for.
        admission: which hellos there is room for.
    """

    def __init__(self, make_sizer: MakeSizer, sensors_every: int = 1, admission: Admission | None = None) -> None:
        self.jobs: dict[str, Job] = {}
        self.rejections = Rejections()
        self.planned: dict[str, None] = {}
        """Jobs that have made a plan since this was last emptied and can use spare time, the longest ago first."""
        self._resting: set[str] = set()
        """Jobs whose newest report told of several iterations, or came long ago: their ranks wait for no plan."""
        self.past = Past()
        """Jobs that may come back."""
        self.begun: dict[str, None] = {}
        """Jobs of which an incarnation has begun since this was last emptied."""
        self.first_version = 0
        """Plans of jobs that nothing is known of count from here: beyond all of earlier runs of the manager."""
        self.forget_after_s = FORGET_AFTER_S
        self.detectors = DEFAULT
        """Of slow ranks, by name, in jobs to come."""
        self.tap: Callable[[Live, Report, float], None] | None = None
        """Hears of each report that a running job took, with the time: a recorder. It wants each iteration's own."""
        self._make_sizer = make_sizer
        self._sensors_every = sensors_every
        self._admission = admission or Admission()
        self._behind: list[Live] = []
        self._looks = Looks()
        self._reminded_s: dict[bytes, float] = {}

    def handle(self, peer: bytes, frame: bytes, now_s: float, caller: Caller = ANYBODY) -> list[Reply]:
        """Take one frame of a peer; returns the replies to send. Never raises: one job's fault ends no other."""
        try:
            message = decode_to_manager(frame)
        except UNREADABLE as error:
            return self._unreadable(peer, frame, str(error), caller)
        try:
            return self._dispatch(peer, message, now_s, caller)
        except Exception as error:  # a fault of ours: counted, and logged with its trace the first time
            self._fault(message.job, error)
            return []

    def _dispatch(self, peer: bytes, message: ToManager, now_s: float, caller: Caller) -> list[Reply]:
        if not caller.may(message.job) and not (isinstance(message, Look) and not message.job):
            self.rejections.add("", "another's job", f"key {caller.name!r} speaks for job {message.job!r}")
            return not_theirs(peer, message, caller)
        match message:
            case Report():
                return self._report(peer, message, now_s)
            case Hello():
                return self._hello(peer, message, now_s, caller)
            case Bye():
                return self._bye(peer, message, now_s)
            case Look():
                return [(peer, only_theirs(self._looks.answer(message, self.jobs, now_s), caller))]

    @property
    def at_rest(self) -> bool:
        """Whether there are jobs, and none of them waits for plans."""
        return 0 < len(self.jobs) == len(self._resting)

    def forget_vanished(self, now_s: float) -> None:
        """Drop jobs that nobody has spoken for in a long time, and past ones that did not come back."""
        self.past.forget(now_s)
        self._resting.update(name for name, job in self.jobs.items() if now_s - job.heard_s > QUIET_S)
        for name in [n for n, job in self.jobs.items() if now_s - job.heard_s > self.forget_after_s]:
            log.info("job %r is forgotten: nobody spoke for it in %.0f s", name, self.forget_after_s)
            self._end(name)

    def _report(self, peer: bytes, report: Report, now_s: float) -> list[Reply]:
        job = self.jobs.get(report.job)
        roster = None if job is None else job.roster(report.incarnation)
        if job is None or roster is None:
            self.rejections.add(report.job, "unknown incarnation", f"incarnation {report.incarnation!r}")
            return self._remind(peer, report, now_s)
        if report.rank not in roster.peers and peer in roster.peers.values():
            self.rejections.add(report.job, "unknown rank", f"rank {report.rank} has not said hello")
            return []
        if roster.peers.get(report.rank) != peer:
            self.rejections.add(report.job, "no hello", f"rank {report.rank} has not said hello from there")
            return self._remind(peer, report, now_s)
        live = job.running(report.incarnation)
        if live is None:
            self.rejections.add(
                report.job, "early", f"rank {report.rank} reports before all ranks are there", logging.DEBUG
            )
            return []
        job.heard_s = now_s
        try:
            plan = live.report(report, now_s)
        except RejectedReport as error:
            self.rejections.add(report.job, str(error.kind), str(error))
            return []
        (self._resting.add if report.iterations > 1 else self._resting.discard)(report.job)
        if self.tap is not None:
            self.tap(live, report, now_s)
        if plan is None:
            return []
        if live.sizer.trains:
            self.planned[report.job] = None
        self._behind.append(live)
        return [(roster.peers[0], plan)]

    def machine_of(self, welcome: Welcome) -> str:
        """Where the rank runs that is welcomed; empty where it has gone."""
        job = self.jobs.get(welcome.job)
        roster = None if job is None else job.roster(welcome.incarnation)
        return "" if roster is None or welcome.rank not in roster.hellos else roster.hellos[welcome.rank].machine

    def catch_up(self) -> None:
        """Let jobs that have just made a plan do what could wait until it had left."""
        behind, self._behind = self._behind, []
        for live in behind:
            try:
                live.catch_up()
            except Exception as error:  # a fault of ours in one job ends no other
                self._fault(live.hello.job, error)

    def _fault(self, job: str, error: Exception) -> None:
        """Count a fault of ours; call it while the error is being handled."""
        kind = f"internal {type(error).__name__}"
        if kind not in self.rejections.of(job):
            log.exception("job %r: a fault of the manager's own", job)
        self.rejections.add(job, kind, str(error))

    def _hello(self, peer: bytes, hello: Hello, now_s: float, caller: Caller) -> list[Reply]:
        opener = caller.name or peer
        if hello.job not in self.jobs and (idle := self._admission.idle(self.jobs, now_s)):
            log.warning("job %r gives way to %r: nobody speaks for it", idle, hello.job)
            left = self.jobs[idle].left(now_s + self.forget_after_s)
            if left is not None:
                self.past.keep(idle, left)
            self._end(idle)
        reason = unsound(hello) or self._admission.refuse(hello, opener, self.jobs)
        if reason is not None:
            self.rejections.add(hello.job, "unsound hello", reason)
            return [(peer, refusal(hello, reason))]
        job = self.jobs.get(hello.job)
        if job is None:
            job = self.jobs[hello.job] = Job(
                hello.job, self._make_sizer, now_s, self._sensors_every, self.past.take(hello.job), self.first_version,
                self.detectors, 1 if self.tap is not None else MOST_TOGETHER,
            )  # fmt: skip
            self._admission.opened(hello.job, opener)
        before = job.live
        replies = job.hello(hello, peer, now_s)
        if job.live is not before:
            self._resting.discard(hello.job)
            self.begun[hello.job] = None
        return replies

    def _bye(self, peer: bytes, bye: Bye, now_s: float) -> list[Reply]:
        job = self.jobs.get(bye.job)
        roster = None if job is None else job.roster(bye.incarnation)
        if job is None or roster is None or roster.peers.get(bye.rank) != peer:
            self.rejections.add(bye.job, "no hello", f"bye of rank {bye.rank} that is not known from there")
        elif job.bye(bye.incarnation, bye.rank):
            log.info("job %r has ended", bye.job)
            left = job.left(now_s + self.forget_after_s)
            if left is not None:
                self.past.ended(bye.job, left, now_s)
            self._end(bye.job)
        return []

    def _end(self, name: str) -> None:
        del self.jobs[name]
        self.planned.pop(name, None)
        self._resting.discard(name)
        self.rejections.forget(name)
        self._admission.ended(name)

    def _remind(self, peer: bytes, report: Report, now_s: float) -> list[Reply]:
        """Ask for a hello, each peer a few times a second at most."""
        if now_s - self._reminded_s.get(peer, -REMIND_EVERY_S) < REMIND_EVERY_S:
            return []
        if len(self._reminded_s) >= MAX_PEERS_REMINDED:
            self._reminded_s.clear()
        self._reminded_s[peer] = now_s
        return [(peer, Unknown(job=report.job, incarnation=report.incarnation))]

    def _unreadable(self, peer: bytes, frame: bytes, why: str, caller: Caller) -> list[Reply]:
        """Count it; whoever says a hello that we can't read is told so."""
        try:
            envelope = _read_envelope(frame)
        except UNREADABLE:
            self.rejections.add("", "malformed", why)
            return []
        self.rejections.add(envelope.job[:256] if caller.may(envelope.job) else "", "malformed", why)
        if envelope.type != "hello":
            return []
        reason = f"the hello can't be read ({why}); it speaks protocol {envelope.protocol}, this manager {PROTOCOL}"
        return [(peer, Refused(job=envelope.job, incarnation=envelope.incarnation, reason=reason))]
