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

from lbbsp.protocol import Plan, Refused, Welcome, encode
from lbbsp.service.desk import Desk
from lbbsp.service.figures import Figures, figures
from lbbsp.service.job import Reply
from lbbsp.service.keeper import Keeper
from lbbsp.service.lanes import Lanes, listen
from lbbsp.service.latency import Latency
from lbbsp.service.memory import MemoryGuard
from lbbsp.service.options import ManagerOptions
from lbbsp.service.record import Recorder
from lbbsp.service.router import Incoming, Router
from lbbsp.service.spare import Spare
from lbbsp.service.table import JobTable
from lbbsp.service.watch import Watch
from lbbsp.service.zap import Doorman

log = logging.getLogger(__name__)

BATCH = 256
"""Frames taken before signals and the clock are looked at again."""
TICK_S = 1.0
PARENT_TICK_S = 0.2
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
        self._lanes = listen() if options.lane else None
        self._memory = MemoryGuard(options.max_memory_mib, self._hang_up)
        self._spare = Spare(table, clock, self._waiting)

    def run(self) -> str:
        """Serve until a signal or the parent's end; returns which."""
        self._install_signals()
        poller = self._poller()
        tick_s = TICK_S if self._parent is None else PARENT_TICK_S
        tick_due_s = self._clock()
        while self._stopped_by is None:
            ready = dict(poller.poll(math.ceil(1e3 * max(0.0, tick_due_s - self._clock()))))
            if self._doorman is not None and self._doorman.socket in ready:
                self._doorman.answer()
            if self.desk.bell.fileno() in ready:
                self.desk.answer()
            if self._lanes is not None and self._lanes.fileno() in ready:
                self._serve_lanes()
            self._serve()
            self._spare.spend()
            now_s = self._clock()
            if self._recorder is not None:
                self._recorder.spend(now_s, self._waiting)
            if self._keeper is not None:
                self._keeper.look(now_s)
            if now_s >= tick_due_s:
                tick_due_s = now_s + tick_s
                self._turned_s = now_s
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
        self._wake.close()
        self._waker.close()
        if self._lanes is not None:
            self._lanes.close()
        self._context.destroy(linger=0)

    def _serve(self) -> None:
        for _ in range(BATCH):
            try:
                incoming = self._router.receive(self._clock())
            except zmq.Again:
                break
            if incoming is not None:
                self._take(incoming)
        self._table.catch_up()

    def _serve_lanes(self) -> None:
        lanes = self._lanes
        if lanes is None:
            return
        for speaker, frame in lanes.receive():
            now_s = self._clock()
            if self._router.allows(speaker.peer, now_s, len(frame)):
                self._take(Incoming(speaker.peer, frame, now_s, speaker.caller))
            else:
                lanes.close_of(speaker.peer)

    def _take(self, incoming: Incoming) -> None:
        for reply in self._table.handle(*incoming):
            self._send(reply, incoming)
            if isinstance(reply[1], Plan):
                self._latency.add(self._clock() - incoming.at_s)

    def _send(self, reply: Reply, incoming: Incoming) -> None:
        """By its peer's lane, if it has one; who is welcomed may open one."""
        peer, message = reply
        lanes = self._lanes
        if lanes is None or isinstance(message, Refused):
            self._router.send(peer, encode(message))
        elif isinstance(message, Welcome):
            if peer == incoming.peer:
                token = lanes.offer(peer, incoming.caller)
                message = msgspec.structs.replace(message, lane=lanes.name, token=token)
            self._router.send(peer, encode(message))
        elif not lanes.send(peer, frame := encode(message)):
            self._router.send(peer, frame)

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
        if self._guests is not None and self._guests.refresh() and self._lanes is not None:
            self._lanes.keep(self._guests.knows)
        if self._parent is not None and os.getppid() != self._parent:
            self._stopped_by = "the end of its parent"
        return self._memory.look(now_s)

    def _poller(self) -> zmq.Poller:
        poller = zmq.Poller()
        poller.register(self._router.socket, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        poller.register(self.desk.bell, zmq.POLLIN)
        if self._lanes is not None:
            poller.register(self._lanes.fileno(), zmq.POLLIN)
        if self._doorman is not None:
            poller.register(self._doorman.socket, zmq.POLLIN)
        return poller

    def _install_signals(self) -> None:
        def on_signal(number: int, _: FrameType | None) -> None:
            self.stop(signal.Signals(number).name)

        signal.signal(signal.SIGTERM, on_signal)
        signal.signal(signal.SIGINT, on_signal)
