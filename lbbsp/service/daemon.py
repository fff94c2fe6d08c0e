"""The manager's process: one ROUTER, one poll loop, no threads of ours.

Carries frames between peers and the table of jobs, looks at the jobs once a second, ends on SIGTERM or when
its parent is gone. Decides nothing itself. Times in seconds.
"""

import logging
import math
import os
import signal
import socket as sockets
import time
from collections.abc import Callable
from types import FrameType

import msgspec
import zmq

from lbbsp.prompt import Urgency
from lbbsp.protocol import Plan, Welcome, encode
from lbbsp.service.desk import Desk
from lbbsp.service.figures import Figures, figures
from lbbsp.service.idle import IdleCores
from lbbsp.service.job import Reply
from lbbsp.service.keeper import Keeper
from lbbsp.service.lane_tokens import Speaker
from lbbsp.service.lanes import Lanes, open_lanes
from lbbsp.service.latency import Latency
from lbbsp.service.memory import MemoryGuard
from lbbsp.service.options import ManagerOptions
from lbbsp.service.parent import open_end_of, orphaned
from lbbsp.service.record import Recorder
from lbbsp.service.router import Incoming, Router
from lbbsp.service.spare import Spare
from lbbsp.service.table import JobTable
from lbbsp.service.watch import Watch
from lbbsp.service.zap import Doorman
from lbbsp.worker.identity import machine_name

log = logging.getLogger(__name__)

BATCH = 256
"""Frames taken before signals and the clock are looked at again."""
TICK_S = 1.0
PARENT_TICK_S = 0.2
PARENT_GONE = "the end of its parent"
STUCK_S = 10.0
"""A loop that has not ticked for this long does not serve."""


class Daemon:
    """Bound when made, serves in run().

    Args:
        options: where to listen and for whom.
        table: the jobs.
        recorder: records the jobs, in spare time.
        keeper: keeps a journal of the jobs.
        clock: seconds, monotonic.

    Raises:
        ServiceError: the address can't be bound.
    """

    def __init__(
        self, options: ManagerOptions, table: JobTable, recorder: Recorder | None = None,
        *, keeper: Keeper | None = None, clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self._table = table
        self._recorder = recorder
        self._keeper = keeper
        self._watch = Watch(table, options.on_straggler)
        self._clock = clock
        self._parent = options.parent
        self._parents_end = open_end_of(options.parent)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._guests = None if options.keys is None else options.keys.guests
        self._doorman = None if self._guests is None else Doorman(self._context, self._guests)
        self._stopped_by: str | None = None
        self._lanes: Lanes | None = None
        self._wake, self._waker = sockets.socketpair()
        self._latency = Latency()
        self.desk: Desk[Figures] = Desk(self._figures)
        """Where other threads ask for figures; answered while run() serves."""
        self._turned_s = float("-inf")
        try:
            self._router = Router(self._context, options, table.rejections)
        except BaseException:
            self.close()
            raise
        self.address = self._router.address
        if options.lane and (lanes := open_lanes()) is not None:
            self._lanes = lanes
            self._router.hung_up_on = lanes.bar
        self._machine = machine_name()
        self._memory = MemoryGuard(options.max_memory_mib, self._hang_up)
        self._spare = Spare(table, clock, self._waiting, IdleCores())

    def run(self) -> str:
        """Serve until a signal or the parent's end; returns which."""
        self._install_signals()
        poller, urgency = self._poller(), Urgency()
        tick_s = PARENT_TICK_S if self._parent is not None and self._parents_end is None else TICK_S
        tick_due_s = self._clock()
        while self._stopped_by is None:
            ready = dict(poller.poll(math.ceil(1e3 * max(0.0, tick_due_s - self._clock()))))
            if self._doorman is not None and self._doorman.socket in ready:
                self._doorman.answer()
            if self.desk.bell.fileno() in ready:
                self.desk.answer()
            if self._parents_end in ready:
                self._stopped_by = PARENT_GONE
            self._serve(self._router.socket in ready)
            urgency.be(not self._table.at_rest)
            self._spare.spend()
            now_s = self._clock()
            if self._recorder is not None:
                self._recorder.spend(now_s, self._waiting)
            if self._keeper is not None:
                self._keeper.look(now_s)
            if now_s >= tick_due_s:
                tick_due_s = now_s + tick_s
                self._turned_s = now_s
                urgency.be(True)  # a program that it starts inherits this
                if self._look(now_s):
                    poller = self._poller()
        return self._stopped_by

    def stop(self, why: str) -> None:
        """Make run() return soon; safe in a signal handler."""
        self._stopped_by = why
        self._waker.send(b"x")

    def alive(self) -> bool:
        """Whether run() serves and turns; from any thread."""
        return self._clock() - self._turned_s < STUCK_S

    def close(self) -> None:
        """Free the port."""
        self.desk.close()
        if self._parents_end is not None:
            os.close(self._parents_end)
        self._wake.close()
        self._waker.close()
        if self._lanes is not None:
            self._lanes.close()
        self._context.destroy(linger=0)

    def _serve(self, by_zeromq: bool) -> None:
        """All that has come, up to BATCH; a look at ZeroMQ costs as much as a message, so only where it has news."""
        left = BATCH
        while left > 0 and (taken := self._round(by_zeromq)):
            left -= taken
        self._table.catch_up()

    def _round(self, by_zeromq: bool) -> int:
        """One frame of each lane and as many of ZeroMQ's, so that neither way's news run far ahead; how many came."""
        taken = 0
        for speaker, frame in self._lanes.round() if self._lanes is not None else ():
            taken += 1
            self._take(self._router.through_lane(speaker, frame, self._clock()), speaker.peer)
        for _ in range(max(1, taken) if by_zeromq else 0):
            if not self._router.waiting():
                break
            taken += 1
            self._take(self._router.receive(self._clock()))
        return taken

    def _take(self, incoming: Incoming | None, through_lane_of: bytes | None = None) -> None:
        if incoming is None:
            if through_lane_of is not None and self._lanes is not None:
                self._lanes.bar(through_lane_of)
            return
        for reply in self._table.handle(incoming.peer, incoming.frame, incoming.at_s, incoming.caller):
            self._send(reply, incoming)
            if isinstance(reply[1], Plan):
                self._latency.add(self._clock() - incoming.at_s)

    def _send(self, reply: Reply, incoming: Incoming) -> None:
        """Plans by their peer's lane, where it has one; all else by ZeroMQ, and then plans too, in their order."""
        peer, message = reply
        lanes = self._lanes
        if isinstance(message, Welcome):
            self._router.send(peer, encode(self._inviting(message, incoming) if peer == incoming.peer else message))
        elif lanes is None or not isinstance(message, Plan):
            if lanes is not None:
                lanes.end(peer)
            self._router.send(peer, encode(message))
        elif not lanes.send(peer, frame := encode(message)):
            self._router.send(peer, frame)

    def _inviting(self, welcome: Welcome, incoming: Incoming) -> Welcome:
        """With the way to a lane, for a rank on this machine."""
        if self._lanes is None or self._table.machine_of(welcome) != self._machine:
            return welcome
        name, token, answer = self._lanes.invite(Speaker(incoming.peer, incoming.public))
        return msgspec.structs.replace(welcome, lane=name, token=token, answer=answer)

    def _waiting(self) -> bool:
        """Whether a message waits."""
        return self._router.waiting() or (self._lanes is not None and self._lanes.waiting())

    def _hang_up(self) -> None:
        if self._lanes is not None:
            self._lanes.close_all()
        self._router.hang_up()

    def _figures(self) -> Figures:
        return figures(self._table, self._latency, 0 if self._doorman is None else self._doorman.turned_away)

    def _look(self, now_s: float) -> bool:
        """What is due once a second; True where there is another socket now."""
        self._watch.look(now_s)
        if self._guests is not None:
            self._guests.refresh()
        if self._lanes is not None:
            self._lanes.tick()
        if self._parent is not None and orphaned(self._parent):
            self._stopped_by = PARENT_GONE
        return self._memory.look(now_s)

    def _poller(self) -> zmq.Poller:
        poller = zmq.Poller()
        poller.register(self._router.socket, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        poller.register(self.desk.bell, zmq.POLLIN)
        if self._lanes is not None:
            poller.register(self._lanes.fileno(), zmq.POLLIN)
        if self._parents_end is not None:
            poller.register(self._parents_end, zmq.POLLIN)
        if self._doorman is not None:
            poller.register(self._doorman.socket, zmq.POLLIN)
        return poller

    def _install_signals(self) -> None:
        def on_signal(number: int, _: FrameType | None) -> None:
            self.stop(signal.Signals(number).name)

        signal.signal(signal.SIGTERM, on_signal)
        signal.signal(signal.SIGINT, on_signal)
