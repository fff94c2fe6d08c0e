"""A rank's part in a job, from settled terms to a running follower: manager, client, channel.

What every adapter does alike. Knows nothing of frameworks: gathering and broadcasting come as `Group`.
"""

import logging
import os
import socket
import time
import weakref
from dataclasses import dataclass
from typing import Any, Protocol

from lbbsp.errors import ServiceError
from lbbsp.prompt import prompt_threads
from lbbsp.protocol import Hello
from lbbsp.worker import embedded
from lbbsp.worker.channel import Channel, Link, Receiver
from lbbsp.worker.choice import choice_options, tell_unheard
from lbbsp.worker.chunked import Ahead
from lbbsp.worker.client import Client, CurveKeys
from lbbsp.worker.follower import Follower
from lbbsp.worker.gpu import gpu_sources
from lbbsp.worker.journals import journal_of
from lbbsp.worker.keyfile import client_curve
from lbbsp.worker.owntime import Marks, OwnTime
from lbbsp.worker.relay import Relay
from lbbsp.worker.sensors import Sensors, Source, machine_sources
from lbbsp.worker.terms import Offer, Terms, hello
from lbbsp.worker.vector import Vector

log = logging.getLogger(__name__)

NOBODY = "tcp://127.0.0.1:1"
"""Stands for a manager that could not be started: nobody listens there, and training goes on."""


class Group(Link, Protocol):
    """The ranks of a job."""

    rank: int

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in order of rank."""


@dataclass(frozen=True)
class Reach:
    """How to reach the manager."""

    address: str
    curve: CurveKeys | None = None


def manager_address(argument: str | None) -> str | None:
    """The address that the user gave: the argument, else LBBSP_MANAGER, else None."""
    return argument or os.environ.get("LBBSP_MANAGER") or None


def first_vector(terms: Terms) -> Vector:
    """The sizes before the first plan: the split closest to equal."""
    return Vector(terms.bounds.equal())


class Session:
    """One rank's running part in a job; close() ends it.

    Args:
        group: the job's ranks.
        terms: what they settled.
        offer: what this rank brought.
        marks: the stamps of own time.
        master: where the job's rendezvous is, so that an embedded manager listens where all ranks reach it.
    """

    def __init__(self, group: Group, terms: Terms, offers: list[Offer], marks: Marks, master: str) -> None:
        self._group, self._offer = group, offers[group.rank]
        self._child: embedded.Embedded | None = None
        self._sensors = Sensors([*machine_sources(), *_gpu(self._offer)])
        self._loads = self._iterations = 0
        self.terms = terms
        reach = self._reach(offers, master)
        greeting = self._hello(terms)
        self.client = Client(reach.address, greeting, curve=reach.curve)
        start = first_vector(terms)
        self.channel = self._channel(start)
        self.follower = Follower(
            greeting,
            self.channel,
            start,
            terms.lookahead,
            OwnTime(marks, time.perf_counter),
            time.perf_counter,
            self._readings,
            self._ahead(terms),
        )
        self.client.pump()
        if isinstance(self.channel, Relay):
            hold_while_forking(self.channel)
            with prompt_threads():
                self.channel.start()

    @property
    def rank(self) -> int:
        """This process's rank in the job."""
        return self._group.rank

    def resume(self, terms: Terms, reductions: int) -> None:
        """Say hello again under new terms; sizes fall back to the equal split."""
        self._loads += 1
        self.terms = terms
        greeting = self._hello(terms)
        start = first_vector(terms)
        self.follower.fall_back(start, greeting, reductions)
        self.channel.restart(greeting, start, terms.bounds)

    def close(self) -> None:
        """Leave the job; an embedded manager ends with rank 0."""
        self.channel.close()
        if self._child is not None:
            self._child.stop()
            self._child = None

    def _readings(self) -> tuple[float, ...]:
        """What this iteration's report carries of the sensors: as often as the manager asks for."""
        self._iterations += 1
        every = self.follower.in_force.sensors_every or self.client.sensors_every
        return self._sensors.read() if self._iterations % every == 0 else ()

    def _ahead(self, terms: Terms) -> Ahead | None:
        if not terms.chunks:
            return None
        return Ahead(self._offer.chunk_tasks, self._offer.chunk_depth, terms.chunk_depth)

    def _hello(self, terms: Terms) -> Hello:
        return hello(terms, self._offer, self._group.rank, self._sensors.names, self._loads)

    def _channel(self, start: Vector) -> Channel:
        if self._group.rank == 0:
            return Relay(self.client, self._group, start, self.terms.bounds, time.perf_counter)
        return Receiver(self.client, self._group, start)

    def _reach(self, offers: list[Offer], master: str) -> Reach:
        """Rank 0 knows or starts the manager; all learn of it."""
        mine: Reach | None = None
        if self._group.rank == 0:
            mine = self._outside(offers[0].manager) if offers[0].manager else self._embed(offers, master)
        found: Reach = self._group.gather(mine)[0]
        return found

    def _outside(self, manager: str) -> Reach:
        tell_unheard(self._offer.predictor, self._offer.rule, manager)
        return Reach(manager, client_curve())

    def _embed(self, offers: list[Offer], master: str) -> Reach:
        hosts = {offer.machine for offer in offers}
        try:
            host = "127.0.0.1" if len(hosts) == 1 else _own_address(master)
            options = choice_options(self._offer.predictor, self._offer.rule)
            kept = journal_of(self.terms.job, self.terms.incarnation)
            self._child = embedded.start(host, journal=kept, options=options)
        except ServiceError as error:
            log.warning("%s; training goes on with equal sizes", error)
            return Reach(NOBODY)
        return Reach(self._child.address, self._child.curve)


def hold_while_forking(relay: Relay) -> None:
    """No fork while the relay's thread is inside ZeroMQ or our code: a child would inherit its locks."""
    held = weakref.ref(relay)

    def before() -> None:
        if (alive := held()) is not None:
            alive.hold()

    def after() -> None:
        if (alive := held()) is not None:
            alive.release()

    os.register_at_fork(before=before, after_in_parent=after)


def _gpu(offer: Offer) -> list[Source]:
    """The rank's GPU among its sensors, where it has one."""
    if offer.device_kind != "cuda":
        return []
    index = offer.device.rpartition(":")[2]
    return list(gpu_sources(int(index) if index.isdigit() else 0, offer.gpu_uuid))


def _own_address(master: str) -> str:
    """This host's address on the way to the job's master."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((master, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
