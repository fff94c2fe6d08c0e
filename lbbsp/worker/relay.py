"""Rank 0 relays the manager's plans to the other ranks, one message after each gradient reduction.

It is sent from a thread of its own as soon as the plan is there, or at its deadline (see pacing), which may be noticed
WATCH_S late where all plans have come in time; the training thread is never needed. A job whose sizes have long been
equal waits for no plan, and rests (see rest.py): sizes follow some iterations later there. The other ranks' side is in
channel.py. Knows nothing of frameworks: the adapter brings the `Link`. Seconds.
"""

import logging
import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import ParamSpec, TypeVar

import numpy as np
import zmq

from lbbsp.core.parts import WHOLE_PPM
from lbbsp.core.sizing import Bounds, fits
from lbbsp.protocol import Hello, Plan
from lbbsp.worker.channel import Link, Reduction, Restart, say
from lbbsp.worker.client import HOLD_S, Client
from lbbsp.worker.homes import Homes
from lbbsp.worker.pacing import Pacing
from lbbsp.worker.rest import Rests
from lbbsp.worker.vector import IntArray, Place, Vector, pack

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

IDLE_POLL_S = 1.0
WATCH_S = 0.25
"""A plan that is missing where all have come in time is noticed after so long, unless a draw asks for it."""
KNOWN_LATE = 2
"""Reductions that other ranks' own times may be known later than rank 0's: a plan so far behind is the newest."""
NAP_S = 1e-4
FORK_WAIT_S = 5.0


class Relay(threading.Thread):
    """Rank 0: owns the client; turns each reduction into one broadcast."""

    def __init__(self, client: Client, link: Link, start: Vector, bounds: Bounds, clock: Callable[[], float]) -> None:
        super().__init__(name="lbbsp-relay", daemon=True)
        self._client, self._link, self._clock = client, link, clock
        self._bounds = bounds
        self._rests = Rests(bounds.equal())
        self._homes = Homes(start.homes)
        self._planned: tuple[int, ...] = ()
        """The sizes in force, where a plan gave them."""
        self._inbox: deque[Reduction | Restart] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._changed = threading.Condition()
        self._newest: tuple[Vector, tuple[Place, ...]] = (start, ())
        self._fault: BaseException | None = None
        self._reduced_s: float | None = None
        self._wanted_s: float | None = None
        self._tail_s = 0.0
        self._sequence = self._sent_sequence = start.sequence
        self._closing = self._ill = False
        self._drawn = True
        self._holding = threading.Lock()
        self._held = False
        self.pacing = Pacing()
        self.plans_taken = 0
        self.plans_refused = 0

    # --- the training thread's side

    def reduction(self, event: Reduction) -> None:
        """Report at once, then hand the event to the relay's thread, if it is known to need a message."""
        with self._holding:
            newest = self._newest[0]
            self._guarded(say, self._client, event, newest)
            self._rests.reduction(drawn=self._drawn)
            self._sequence, self._drawn = event.sequence, False
            self._reduced_s = self._wanted_s = None
            if event.sequence <= newest.holds_through:
                self.pacing.event(event.at_s, event.paused_s)
                return
            self._inbox.append(event)
            at_once = self.calm or self._hopeless(event)
        if at_once:
            os.eventfd_write(self._wake, 1)

    def reduced(self) -> None:
        """Let the deadline be known, unless the plan is there or will be: a wake-up costs the training thread time."""
        self._reduced_s = self._clock()
        if not (self.pacing.prompt or self._done(sent=False)):
            os.eventfd_write(self._wake, 1)

    def vector(self, usual_tail_s: float, sent: bool = False) -> tuple[Vector, tuple[Place, ...]]:
        """Wait until the relay has decided on the newest reduction, at most its grace."""
        self._tail_s, self._drawn = usual_tail_s, True
        if not self._done(sent):
            self._wanted_s = self._clock()
            os.eventfd_write(self._wake, 1)
            with self._changed:
                self._changed.wait_for(lambda: self._fault or self._done(sent))
        if self._fault is not None:
            raise self._fault
        if sent:
            with self._holding:
                self._guarded(self._client.flush)
        return self._newest

    @property
    def calm(self) -> bool:
        """Whether sizes have been equal for so long that nobody waits for plans."""
        return self._rests.calm

    def restart(self, hello: Hello, start: Vector, bounds: Bounds) -> None:
        """Let the relay's thread say hello again before it takes the next reduction."""
        with self._holding:
            self._newest = (replace(start, sequence=self._sequence), ())
            self._sent_sequence = self._sequence
            self._homes, self._planned = Homes(start.homes), ()
            self._inbox.append(Restart(hello, bounds))
        os.eventfd_write(self._wake, 1)

    def hold(self) -> None:
        """Keep the relay's thread out of our code while this process forks; gives up after 5 s."""
        self._held = self.is_alive() and self._holding.acquire(timeout=FORK_WAIT_S)

    def release(self) -> None:
        """The fork is done."""
        if self._held:
            self._held = False
            self._holding.release()

    def _done(self, sent: bool) -> bool:
        newest = self._newest[0]
        return newest.holds_through >= self._sequence and (not sent or self._sent_sequence >= newest.sequence)

    def close(self) -> None:
        """Send what is owed, say bye, stop."""
        self._closing = True
        os.eventfd_write(self._wake, 1)
        if self.is_alive():
            self.join(timeout=5.0)

    # --- the relay's thread

    def run(self) -> None:
        """Serve until closed. A broken control group ends it; the next draw raises torch's own error."""
        poller, woken = select.poll(), select.poll()
        poller.register(self._wake, select.POLLIN)
        woken.register(self._wake, select.POLLIN)
        poller.register(int(self._client.socket.getsockopt(zmq.FD)), select.POLLIN)
        due: Reduction | None = None
        lane = -1
        while self._fault is None and not (self._closing and due is None and not self._inbox):
            lane = _follow(poller, lane, -1 if self._ill else self._client.lane)
            ready = _wait(woken if self.calm or self._ill else poller, self._timeout_s(due))
            with self._holding:
                due = self._turn(due, ready)
        self._client.close()

    def _turn(self, due: Reduction | None, ready: set[int]) -> Reduction | None:
        """One turn of the loop: take in what came, send what is due."""
        if self._wake in ready:
            _drain(self._wake)
        while self._inbox:
            if due is not None:
                self._send(due, None)
            due = self._accept(self._inbox.popleft())
        plan = self._guarded(self._fresh, due, ready)
        if due is None:
            self._guarded(self._client.flush, HOLD_S)
            return None
        if plan is None and not (self.calm or self._hopeless(due)) and self._timeout_s(due) > 0:
            return due
        self._send(due, plan)
        return None

    def _accept(self, event: Reduction | Restart) -> Reduction | None:
        if isinstance(event, Restart):
            hello, self._bounds = event.hello, event.bounds
            self._rests = Rests(event.bounds.equal())
            self._guarded(self._client.hello_again, hello)
            return None
        self.pacing.event(event.at_s, event.paused_s)
        return event if event.sequence > self._newest[0].holds_through else None

    def _guarded(self, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | None:
        """A fault of our own service must never reach the training loop: from then on sizes stay as they are."""
        if self._ill:
            return None
        try:
            return call(*arguments, **named)
        except Exception:
            self._ill = True
            log.exception("a fault of lbbsp's own; training goes on with the sizes it has")
            return None

    def _hopeless(self, due: Reduction) -> bool:
        """No plan can come: nothing was reported, or nobody is there."""
        away = self._client.away or self._client.refused is not None
        return self._closing or self._ill or due.report is None or away

    def _fresh(self, due: Reduction | None, ready: set[int]) -> Plan | None:
        """The manager's plan for this reduction, if it is there; looks only where something may have come."""
        if ready - {self._wake, self._client.lane}:
            self._client.pump()
        elif ready != {self._wake} or self.calm or not self._client.by_lane:
            self._client.look()
        plan = self._client.plan()
        if due is None or plan is None or due.report is None or plan.based_on_iteration < due.report.iteration:
            return None
        return plan

    def _timeout_s(self, due: Reduction | None) -> float:
        if due is None:
            return IDLE_POLL_S if self.calm else WATCH_S
        deadline_s = self.pacing.deadline_s(due.at_s, self._reduced_s, self._wanted_s, self._tail_s)
        longest_s = WATCH_S if self.pacing.prompt else IDLE_POLL_S  # nobody says that the reduction has ended
        return max(0.0, min(longest_s, deadline_s - self._clock()))

    def _send(self, due: Reduction, plan: Plan | None) -> None:
        """One broadcast: the newest plan that is newer and fits, else the sizes in force."""
        self._learn(due, plan)
        old = self._newest[0]
        vector = self._guarded(self._next_vector, old, plan) or old
        self._rests.sent(vector)
        homes, rest = self._homes.follow(vector.sizes), self._rest(old, due, vector)
        vector = replace(vector, sequence=due.sequence, homes=homes, rest=rest)
        with self._changed:
            self._newest = (vector, due.places)
            self._changed.notify_all()
        try:
            self._link.send(pack(vector, due.places))
        except Exception as fault:  # torch's own; raised at the next draw
            self._fault = fault
        with self._changed:
            self._sent_sequence = due.sequence
            self._changed.notify_all()

    def _rest(self, old: Vector, due: Reduction, new: Vector) -> int:
        together = 1 if self._ill else self._client.together
        unanswered = new.based_on_iteration + KNOWN_LATE < self._client.newest_sent and not self._client.away
        return self._rests.after(old, due.left, self.pacing.longest_s, together, unanswered)

    def _learn(self, due: Reduction, plan: Plan | None) -> None:
        if self._reduced_s is not None:
            self.pacing.reduced(self._reduced_s)
        if due.report is None or self.calm or self._client.away:
            return
        wanted_s = self._wanted_s
        late_s = 0.0 if wanted_s is None else self._clock() - wanted_s
        self.pacing.arrived(late_s if plan is not None else math.inf)

    def _next_vector(self, old: Vector, plan: Plan | None) -> Vector:
        plan = plan or self._client.plan()
        if plan is None or plan.based_on_iteration <= old.based_on_iteration:
            return old
        sizes = self._fitting(old, plan)
        taken = sizes is not None
        return replace(
            old,
            sizes=old.sizes if sizes is None else sizes,
            version=plan.version if taken else old.version,
            based_on_iteration=plan.based_on_iteration,
            beta_ppm=round(WHOLE_PPM * plan.beta),
            chunk=plan.chunk,
            sensors_every=plan.sensors_every,
        )

    def _fitting(self, old: Vector, plan: Plan) -> IntArray | None:
        """The plan's sizes, None where they don't fit; the array in force where they are the same."""
        if plan.sizes == self._planned:
            self.plans_taken += 1
            return old.sizes
        sizes = np.array(plan.sizes, dtype=np.int64)
        why = fits(sizes, self._bounds)
        if why is None:
            self.plans_taken += 1
            self._planned = plan.sizes
            return sizes
        self.plans_refused += 1
        if self.plans_refused == 1:
            log.warning("plan %d does not fit and is ignored, as any more will be: %s", plan.version, why)
        return None


def _drain(wake: int) -> None:
    try:
        os.eventfd_read(wake)
    except BlockingIOError:
        return


def _follow(poller: "select.poll", before: int, now: int) -> int:
    """Wait for the client's lane too; it comes and goes."""
    if before != now:
        if before >= 0:
            poller.unregister(before)
        if now >= 0:
            poller.register(now, select.POLLIN)
    return now


def _wait(poller: "select.poll", timeout_s: float) -> set[int]:
    """The descriptors that became ready within a time; below poll's grain of 1 ms it is waited for in short naps.

    ZeroMQ's socket itself is touched only under the relay's lock: the training thread reports on it too.
    """
    until_s = time.perf_counter() + timeout_s
    ready = poller.poll(int(1000 * timeout_s))
    while not ready and (left_s := until_s - time.perf_counter()) > 0:
        time.sleep(min(left_s, NAP_S))
        ready = poller.poll(0)
    return {descriptor for descriptor, _ in ready}
