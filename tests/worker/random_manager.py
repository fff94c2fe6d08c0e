"""A manager played by a script: real ROUTER, real protocol, but its plans are random and its faults are asked for.

Plans come at each completed iteration; some are delayed, dropped, sent twice, overtaken, or unsound; the whole manager
may go away and come back. Knows nothing of speeds. Times in seconds, sizes in samples.
"""

import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Self

import msgspec
import zmq

from lbbsp.protocol import Bye, Hello, Plan, Report, ToWorker, Unknown, Welcome, decode_to_manager, encode
from lbbsp.worker.relay import Relay

TRAVEL_S = 0.8
IN_TIME = "PLANS_IN_TIME"
KINDS = ("delay", "drop", "twice", "overtaken", "wrong_sum", "earlier_incarnation", "garbage")


@dataclass(frozen=True)
class Faults:
    """How often each fault befalls a plan, and when the manager is away."""

    rates: dict[str, float] = field(default_factory=dict)
    """Share of plans by kind; see KINDS."""
    delay_s: float = 0.05
    away: tuple[int, ...] = ()
    """Iterations at which the manager goes away."""
    away_s: float = 0.05
    quiet: Callable[[int], bool] = lambda iteration: False
    """Iterations in which nothing goes wrong."""


@dataclass(frozen=True)
class Offered:
    """A plan as it was sent."""

    iteration: int
    sizes: tuple[int, ...]
    fault: str | None


@dataclass
class Job:
    """What the script knows of one incarnation."""

    hellos: dict[int, tuple[bytes, Hello]] = field(default_factory=dict)
    reports: dict[int, set[int]] = field(default_factory=dict)
    version: int = 0


def any_sizes(hellos: list[Hello], random: Random) -> tuple[int, ...]:
    """A random plan within the bounds; often very unequal, with ranks at their minimum."""
    grain = hellos[0].granularity
    sizes = [-(-hello.min_samples // grain) * grain for hello in hellos]
    left = hellos[0].global_batch - sum(sizes)
    while left > 0:
        rank = random.randrange(len(sizes))
        room = min(left, hellos[rank].max_samples // grain * grain - sizes[rank]) // grain
        if room > 0:
            units = room if random.random() < 0.2 else random.randint(1, room)
            sizes[rank] += units * grain
            left -= units * grain
    return tuple(sizes)


class ScriptedManager(threading.Thread):
    """Serves until stopped; `with` starts and stops it."""

    together = 1
    """Reports that it takes at once."""

    def __init__(self, seed: int = 0, faults: Faults | None = None, beta: float | None = None) -> None:
        super().__init__(name="scripted-manager", daemon=True)
        self._random, self._faults, self._beta = Random(seed), faults or Faults(), beta
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._bind("tcp://127.0.0.1:*")
        self.address = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._jobs: dict[tuple[str, str], Job] = {}
        self._due: list[tuple[float, int, bytes, bytes]] = []
        self._order = itertools.count()
        self._stopping = threading.Event()
        self._back_s: float | None = None
        self._left: set[int] = set()
        self._held: tuple[bytes, bytes] | None = None
        self.offered: list[Offered] = []
        self.reports: list[Report] = []
        self.hellos: list[Hello] = []
        self.byes: list[Bye] = []
        self.unsound = 0
        self.times_away = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.join(10)
        self._context.destroy(linger=0)

    @property
    def env(self) -> dict[str, str]:
        """What ranks need to find it; without faults, its plans come in time."""
        return {"LBBSP_MANAGER": self.address, IN_TIME: "" if self._faults.rates or self._faults.away else "yes"}

    def run(self) -> None:
        while not self._stopping.is_set():
            self._come_back()
            if self._back_s is None and self._router.poll(self._pause_ms()):
                peer, frame = self._router.recv_multipart()
                self._take(peer, frame)
            elif self._back_s is not None:
                time.sleep(0.005)
            self._send_due()

    def _bind(self, address: str) -> "zmq.Socket[bytes]":
        router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.LINGER, 0)
        deadline_s = time.perf_counter() + 5
        while True:
            try:
                router.bind(address)
                return router
            except zmq.ZMQError:
                if time.perf_counter() > deadline_s:
                    raise
                time.sleep(0.005)

    def _pause_ms(self) -> int:
        if not self._due:
            return 20
        return max(0, min(20, int(1000 * (self._due[0][0] - time.perf_counter()))))

    def _take(self, peer: bytes, frame: bytes) -> None:
        try:
            message = decode_to_manager(frame)
        except msgspec.MsgspecError:
            self.unsound += 1
            return
        match message:
            case Hello():
                self.hellos.append(message)
                self._job(message).hellos[message.rank] = (peer, message)
                ids = {"job": message.job, "incarnation": message.incarnation}
                self._send(peer, Welcome(**ids, rank=message.rank, together=self.together))
            case Report():
                self._take_report(peer, message)
            case Bye():
                self.byes.append(message)

    def _job(self, message: Hello | Report) -> Job:
        return self._jobs.setdefault((message.job, message.incarnation), Job())

    def _take_report(self, peer: bytes, report: Report) -> None:
        self.reports.append(report)
        job = self._job(report)
        if report.rank not in job.hellos:
            self._send(peer, Unknown(job=report.job, incarnation=report.incarnation))
            return
        arrived = job.reports.setdefault(report.iteration, set())
        arrived.add(report.rank)
        hellos = [hello for _, hello in (job.hellos[rank] for rank in sorted(job.hellos))]
        if len(arrived) == hellos[0].world_size == len(hellos):
            self._offer(job, report, any_sizes(hellos, self._random))
            self._maybe_leave(report.iteration)

    def _offer(self, job: Job, report: Report, sizes: tuple[int, ...]) -> None:
        job.version += 1
        plan = Plan(
            job=report.job,
            incarnation=report.incarnation,
            version=job.version,
            based_on_iteration=report.iteration,
            sizes=sizes,
            **self._claims(job.hellos[0][1]),
        )
        fault = self._fault(report.iteration)
        self.offered.append(Offered(report.iteration, sizes, fault))
        self._send_with(fault, job.hellos[0][0], plan)

    def _claims(self, hello: Hello) -> dict[str, Any]:
        """Any planned share and least chunk, where the job claims."""
        if hello.claims == "off":
            return {}
        beta = self._random.choice([0.0, 0.3, 0.6, 0.9, 1.0]) if self._beta is None else self._beta
        return {"beta": beta, "chunk": self._random.choice([0, 1, 5, 100_000] if self._beta is None else [1])}

    def _fault(self, iteration: int) -> str | None:
        if self._faults.quiet(iteration):
            return None
        for kind, rate in self._faults.rates.items():
            if self._random.random() < rate:
                return kind
        return None

    def _send_with(self, fault: str | None, peer: bytes, plan: Plan) -> None:
        held, self._held = self._held, None
        now_s = time.perf_counter()
        match fault:
            case "drop":
                pass
            case "delay":
                self._later(now_s + self._random.uniform(0.2, 1.0) * self._faults.delay_s, peer, plan)
            case "twice":
                self._send(peer, plan)
                self._later(now_s + self._random.uniform(0.0, 1.0) * self._faults.delay_s, peer, plan)
            case "overtaken":
                self._held = (peer, encode(plan))
            case "wrong_sum":
                self._send(peer, replace_sizes(plan, (plan.sizes[0] + 1, *plan.sizes[1:])))
            case "earlier_incarnation":
                self._send(peer, msgspec.structs.replace(plan, incarnation="an-earlier-one"))
            case "garbage":
                self._router.send_multipart([peer, self._random.randbytes(40)])
            case _:
                self._send(peer, plan)
        if held is not None:
            self._router.send_multipart([*held])

    def _later(self, at_s: float, peer: bytes, plan: Plan) -> None:
        heapq.heappush(self._due, (at_s, next(self._order), peer, encode(plan)))

    def _send(self, peer: bytes, message: ToWorker) -> None:
        self._router.send_multipart([peer, encode(message)])

    def _send_due(self) -> None:
        while self._due and self._due[0][0] <= time.perf_counter():
            _, _, peer, frame = heapq.heappop(self._due)
            if self._back_s is None:
                self._router.send_multipart([peer, frame])

    def _maybe_leave(self, iteration: int) -> None:
        """As after kill -9: lines are cut, and what was known is lost."""
        for at in self._faults.away:
            if iteration >= at and at not in self._left:
                self._left.add(at)
                self._router.close(linger=0)
                self._jobs.clear()
                self._due.clear()
                self._held = None
                self.times_away += 1
                self._back_s = time.perf_counter() + self._faults.away_s
                return

    def _come_back(self) -> None:
        if self._back_s is not None and time.perf_counter() >= self._back_s:
            self._router = self._bind(self.address)
            self._back_s = None


def travel(relay: Relay, quiet: bool = True) -> None:
    """Gradients are on their way for 2 ms; where nothing goes wrong, until rank 0's relay has taken its decision.

    So plans come in time however busy the machine is, and one that is not adopted is the relay's fault: it waits 1 s
    for a plan while gradients travel.
    """
    until_s = time.perf_counter() + (TRAVEL_S if quiet else 0.002)
    while time.perf_counter() < until_s and not relay._done(sent=False):
        time.sleep(0.0005)


def let_plans_come_in_time() -> None:
    """In a rank's process, where its environment says so."""
    if os.environ.get(IN_TIME):
        reduced = Relay.reduced

        def travelled(relay: Relay) -> None:
            travel(relay)
            reduced(relay)

        Relay.reduced = travelled


def replace_sizes(plan: Plan, sizes: tuple[int, ...]) -> Plan:
    """The plan with other sizes."""
    return msgspec.structs.replace(plan, sizes=sizes)


def mild(**rates: float) -> Faults:
    """Faults of these rates, with short delays."""
    return replace(Faults(), rates=rates)
