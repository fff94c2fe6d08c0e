"""A worker's line to the manager: report() and plan(), which never block and never raise into a loop.

Has no thread of its own: one thread at a time calls it. Reports and plans go by the lane where the manager is on this
machine, all else by ZeroMQ. While the manager is away reports are dropped, not queued: old news would only delay new.
Knows nothing of training or of what a plan is used for. Times in seconds.
"""

import logging
import time
from collections.abc import Callable

import msgspec
import zmq

from lbbsp.protocol import (
    MOST_TOGETHER,
    UNREADABLE,
    Bye,
    Hello,
    Message,
    Plan,
    Refused,
    Report,
    ToWorker,
    Unknown,
    Welcome,
    decode_to_worker,
    encode,
)
from lbbsp.worker.lane import Invitation, Lane, open_lane
from lbbsp.worker.line import CurveKeys, events, open_line, wait_readable
from lbbsp.worker.merged import merged

__all__ = ["Client", "CurveKeys"]

log = logging.getLogger(__name__)

PATIENCE_S = 2.0
"""How long the manager may take to answer at first before it counts as away."""
HELLO_EVERY_S = (0.2, 5.0)
"""An unanswered hello is said again after the first, doubling up to the second."""

HOLD_S = 2.0
"""No report is held back for longer, if there is another to send it with."""
PUMP_EVERY_S = 2.0
"""Reports look at what the manager says at least so often; with cold caches each look costs 50 microseconds."""


class Client:
    """Speaks for one rank.

    Args:
        address: of the manager, as `tcp://host:port`.
        hello: what this rank says of itself, at start and whenever the manager asks.
        curve: keys, where the manager demands them.
        clock: seconds, monotonic.

    Raises:
        ConfigError: the address is none that ZeroMQ can connect to.
    """

    def __init__(
        self,
        address: str,
        hello: Hello,
        *,
        curve: CurveKeys | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.address = address
        self.refused: str | None = None
        """Why the manager won't have us; None while it would."""
        self.together = 1
        """Iterations that the manager lets a report be of."""
        self.sensors_every = 1
        """Iterations between readings of sensors that the manager asks for."""
        self.newest_sent: int
        """The newest iteration that the manager was told of; -1: of none."""
        self.dropped = 0
        """Reports that could not be sent."""
        self.ignored = 0
        """Messages from the manager that were not for us, or not sound."""
        self._context, self.socket = open_line(address, curve)
        self._lane: Lane | None = None
        self._held: list[tuple[Report, float]] = []
        self._told_samples = 0
        self._told_together = 1
        self._clock = clock
        self._up = False
        self._said_away = False
        self._away_since_s = self._pump_due_s = clock()
        self._begin(hello)

    def _begin(self, hello: Hello) -> None:
        self._hello = hello
        self._held.clear()
        self._drop_lane()
        self._plan: Plan | None = None
        self._newest_reported = self.newest_sent = -1
        self._forget_welcome()

    def _forget_welcome(self) -> None:
        self._welcomed = False
        self._greeted = False
        self._hello_due_s = self._clock()
        self._hello_pause_s = HELLO_EVERY_S[0]
        self.refused = None

    @property
    def lane(self) -> int:
        """The descriptor of the lane, for a poller; -1 without one."""
        lane = self._lane  # the training thread may drop it meanwhile
        return -1 if lane is None else lane.descriptor

    @property
    def by_lane(self) -> bool:
        """Whether plans come by the lane."""
        lane = self._lane
        return lane is not None and lane.open

    @property
    def away(self) -> bool:
        """True while no manager has welcomed us: a plan can't come."""
        return not self._welcomed

    def plan(self) -> Plan | None:
        """The newest plan of this incarnation (rank 0 alone gets any). The caller checks sum and bounds.

        Its version rises with each new plan, across restarts of the manager too.
        """
        return self._plan

    def hello_again(self, hello: Hello) -> None:
        """Speak for another incarnation from now on, after a resume say; earlier plans no longer count."""
        self._begin(hello)
        self.pump()

    def report(self, report: Report, later: bool = False, together: int = 1) -> None:
        """Send one report. Never blocks or raises; unsent reports are counted.

        Takes in what has come too: while no manager has welcomed us, where nobody has in the last PUMP_EVERY_S, and
        where the report could not be sent.

        Args:
            report: of the newest iteration.
            later: it may wait for those that follow, at most HOLD_S, and be merged with them, where the manager
                takes reports of several iterations ...
            together: ... and of how many at most.
        """
        self._newest_reported = max(self._newest_reported, report.iteration)
        together = min(together, self.together)
        if together > 1:
            self._held.append((report, self._clock()))
            self._told_together = together
            if not later or self._urgent(report):
                self.flush()
            return
        self.flush()
        self._report(report)

    @property
    def holds(self) -> bool:
        """Whether reports are held back."""
        return bool(self._held)

    def flush(self, older_s: float = -1.0) -> None:
        """Send the reports that were held back; with older_s, only where the first was held back for longer."""
        if not self._held or self._clock() - self._held[0][1] <= older_s:
            return
        held, self._held = self._held, []
        now_s = self._clock()
        at_s = {report.iteration: at_s for report, at_s in held}
        for report in merged([report for report, _ in held]):
            held_s = max(0.0, now_s - at_s[report.iteration])
            self._report(msgspec.structs.replace(report, held_s=held_s, together=self._told_together))

    def _urgent(self, report: Report) -> bool:
        """Whether the manager should know at once: held ones are old or many, or memory has another bound."""
        full = len(self._held) >= self.together or report.max_samples != self._told_samples
        return full or self._clock() - self._held[0][1] > HOLD_S or self.away

    def _report(self, report: Report) -> None:
        if not self._welcomed or self._clock() >= self._pump_due_s:
            self.pump()
        self._told_samples = report.max_samples
        if self._up and self._greeted and self.refused is None and self._send(report):
            self.newest_sent = report.iteration
            return
        self.dropped += report.iterations
        if self._welcomed:
            self.pump()

    def pump(self, timeout_s: float = 0.0) -> None:
        """Take what has come in, waiting up to timeout_s for it; say hello where it is due."""
        self._pump_due_s = self._clock() + PUMP_EVERY_S
        try:
            self._watch_line()
            if timeout_s > 0 and wait_readable(self.socket, timeout_s, self.lane):
                self._watch_line()
            self._receive()
            self._greet()
        except zmq.ZMQError as error:
            self._lose(str(error))

    def look(self) -> None:
        """Take what has come in by the lane; see to all else once in PUMP_EVERY_S, and where there is no lane."""
        self._read_lane()
        if not (self.by_lane and self._welcomed) or self._clock() >= self._pump_due_s:
            self.pump()

    def close(self) -> None:
        """Say bye and hang up, at most 0.1 s."""
        if self.socket.closed:
            return
        self.flush()
        if self._up and self._greeted:
            self._send(Bye(job=self._hello.job, incarnation=self._hello.incarnation, rank=self._hello.rank))
        self._drop_lane()
        self.socket.close(linger=100)
        self._context.term()

    def _watch_line(self) -> None:
        up = bool(events(self.socket) & zmq.POLLOUT)
        if up != self._up:
            self._up = up
            if not up:
                self._lose("the connection is lost")
            self._drop_lane()
            self._forget_welcome()
        waited_s = self._clock() - self._away_since_s
        if not self._welcomed and self.refused is None and waited_s > PATIENCE_S:
            self._say_away(f"no answer for {waited_s:.0f} s")

    def _lose(self, why: str) -> None:
        if self._welcomed:
            self._away_since_s = self._clock()
            self._say_away(why)
        self._drop_lane()
        self._welcomed = self._greeted = False

    def _greet(self) -> None:
        now_s = self._clock()
        if not self._up or self._welcomed or self.refused is not None or now_s < self._hello_due_s:
            return
        self._greeted = self._send(self._hello) or self._greeted
        self._hello_due_s = now_s + self._hello_pause_s
        self._hello_pause_s = min(2 * self._hello_pause_s, HELLO_EVERY_S[1])

    def _send(self, message: Message) -> bool:
        try:
            frame = encode(message)
            if self._lane is not None and self._lane.open and self._welcomed:
                if self._lane.send(frame):
                    return True
                self._read_lane()
                self._drop_lane()
            self.socket.send(frame, zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        except TypeError as error:
            log.warning("rank %d sent nothing: %s", self._hello.rank, error)
            return False
        return True

    def _receive(self) -> None:
        self._read_lane()
        while events(self.socket) & zmq.POLLIN:
            self._take_frame(self.socket.recv_multipart(zmq.NOBLOCK)[-1])

    def _read_lane(self) -> None:
        while self._lane is not None and (frame := self._lane.receive()) is not None:
            if frame:
                self._take_frame(frame)
            else:
                self._drop_lane()

    def _ask_for_lane(self, invitation: Invitation) -> None:
        """It opens when the manager has answered; one that is open stays, another's token is void by now."""
        if invitation.name and not (self._lane is not None and self._lane.open):
            self._drop_lane()
            self._lane = open_lane(invitation, 4_096 + 9 * self._hello.world_size)  # a size takes up to 9 bytes

    def _drop_lane(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.close()

    def _take_frame(self, frame: bytes) -> None:
        try:
            message = decode_to_worker(frame)
        except UNREADABLE:
            self.ignored += 1
            return
        self._take(message)

    def _take(self, message: ToWorker) -> None:
        if (message.job, message.incarnation) != (self._hello.job, self._hello.incarnation):
            self.ignored += 1
            return
        match message:
            case Plan():
                self._take_plan(message)
            case Welcome():
                self.sensors_every = message.sensors_every
                self.together = min(message.together, MOST_TOGETHER)
                self._ask_for_lane(Invitation(message.lane, message.token, message.answer))
                self._take_welcome()
            case Refused(reason=reason):
                self._take_refusal(reason)
            case Unknown() if self._welcomed:
                self._away_since_s = self._clock()
                self._welcomed = self._greeted = False

    def _take_plan(self, plan: Plan) -> None:
        """Newer by the iteration, since a restarted manager counts its versions anew; ours go on."""
        known = self._plan
        if plan.based_on_iteration > self._newest_reported:
            self.ignored += 1
        elif known is None:
            self._plan = plan
        elif (plan.based_on_iteration, plan.version) > (known.based_on_iteration, known.version):
            version = max(plan.version, known.version + 1)
            self._plan = msgspec.structs.replace(plan, version=version)
        else:
            self.ignored += 1

    def _take_welcome(self) -> None:
        self.refused = None
        self._welcomed = True
        self._hello_pause_s = HELLO_EVERY_S[0]
        if self._said_away:
            away_s = self._clock() - self._away_since_s
            self._say("manager %s is back after %.1f s", self.address, away_s)
        self._said_away = False

    def _take_refusal(self, reason: str) -> None:
        self._welcomed = False
        if reason != self.refused:
            log.error("rank %d: manager %s refused: %s", self._hello.rank, self.address, reason)
        self.refused = reason

    def _say_away(self, why: str) -> None:
        if not self._said_away:
            self._said_away = True
            self._say("manager %s is away (%s); training goes on with the sizes it has", self.address, why)

    def _say(self, text: str, *values: object) -> None:
        """Loud at rank 0 only: one line a job is enough."""
        log.log(logging.WARNING if self._hello.rank == 0 else logging.INFO, text, *values)
