"""What befalls a job in chaos, drawn from a seed, and the threads that make it happen. Seconds.

A fault is due when the job has come to its step; it counts as effective only when it hit something that lived.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import proxy
from chaos_job import Program
from harness import ManagerProcess

SIGNALS = ("manager_kill", "manager_stop", "rank_stop", "rank_kill")
LINKS = tuple(f"link_{kind}" for kind in proxy.KINDS)
SILENT = ("link_cut", "link_held", "link_held_up", "link_held_down", "link_half_open", "manager_stop", "rank_stop")
FIRST, LAST = 0.15, 0.7
"""Shares of the job's steps between which faults begin."""
CLAIMS = 0.3
"""Share of the jobs whose ranks claim a part of each iteration."""
NEVER_THERE = 0.1
"""Share of the jobs that begin without a manager."""
LANES = 4
"""One schedule in so many has its ranks speak to the manager past the link, as they do on one machine."""
LASTING, LASTING_S = 25, (5.5, 8.0)
"""Each so many schedules a fault lasts so long; a peer that is silent for 5 s is hung up on."""
SETTLE_S = 1.0
"""After a fault: reconnects come 0.5 s apart at most, hellos after 0.2 s."""


@dataclass(frozen=True)
class Fault:
    """One of them."""

    kind: str
    step: int
    lasts_s: float
    wait_s: float
    """Of each piece on a late or slow link."""
    one: bool
    """One connection, not all."""
    rank: int


@dataclass(frozen=True)
class Schedule:
    """What one seed means."""

    program: Program
    faults: tuple[Fault, ...]

    @property
    def lane(self) -> bool:
        """Whether ranks may speak to the manager past ZeroMQ, and so past the link."""
        return self.program.seed % LANES == LANES - 1

    @staticmethod
    def of(seed: int) -> "Schedule":
        """Three to five faults; torchrun starts ranks again in three schedules of five."""
        random = Random(seed)
        draws = random.choice([1, 1, 2])
        program = Program(
            seed=seed,
            steps=110 // draws,
            samples=random.randint(209, 223) if draws == 2 else random.randint(150, 260),
            draws=draws,
            every=random.randint(1, 5),
            loader_workers=random.choice([0, 0, 0, 1]),
            min_samples=random.choice([0, 1]),
        )
        kinds = [random.choice(SIGNALS[:3]), random.choice(LINKS), random.choice(LINKS + SIGNALS[:3])]
        if random.random() < 0.6:
            kinds += ["rank_kill"] * random.choice([1, 1, 1, 2])
        faults = tuple(_fault(random, kind, program.steps) for kind in kinds)
        program = replace(program, claims=random.random() < CLAIMS)
        if random.random() < NEVER_THERE:
            faults = (replace(faults[0], kind="manager_kill", step=-1, lasts_s=random.uniform(1.5, 3.0)), *faults)
        return _lasting(random, program, faults) if seed % LASTING == LASTING - 1 else Schedule(program, faults)


def _lasting(random: Random, program: Program, faults: tuple[Fault, ...]) -> Schedule:
    """The same after a fault that outlasts ZeroMQ's patience with a silent peer."""
    first = replace(faults[0], kind=random.choice(SILENT), step=program.steps // 8, lasts_s=random.uniform(*LASTING_S))
    later = (replace(fault, step=fault.step + 3 * program.steps) for fault in faults)
    return Schedule(replace(program, steps=5 * program.steps), (first, *later))


def _fault(random: Random, kind: str, steps: int) -> Fault:
    return Fault(
        kind=kind,
        step=int(random.uniform(FIRST, LAST) * steps),
        lasts_s=random.uniform(0.05, 0.6),
        wait_s=random.uniform(0.005, 0.08),
        one=random.random() < 0.4,
        rank=random.randrange(2),
    )


@dataclass(frozen=True)
class Hit:
    """A fault as it came to pass."""

    kind: str
    began_s: float
    ended_s: float
    effective: bool


class Injector:
    """Waits for the steps of its faults and lets each happen in a thread of its own; those of a kind take turns."""

    def __init__(self, schedule: Schedule, folder: Path, link: proxy.Proxy, manager: ManagerProcess) -> None:
        self._left = sorted(schedule.faults, key=lambda fault: fault.step)
        self._folder, self._link, self.manager, self._lane = folder, link, manager, schedule.lane
        self._threads: list[threading.Thread] = []
        self._turns = {kind: threading.Lock() for kind in ("manager", "rank", "link")}
        self.hits: list[Hit] = []
        self.failures = 0
        """Managers that did not come up or did not stay."""

    def at(self, step: int) -> None:
        """The job has come to this step."""
        while self._left and self._left[0].step <= step:
            thread = threading.Thread(target=self._befall, args=(self._left.pop(0),), daemon=True)
            thread.start()
            self._threads.append(thread)

    def join(self) -> None:
        """Until all that began has ended; then the manager ends, too."""
        for thread in self._threads:
            thread.join()
        self.failures += self.manager.process.poll() is not None
        self.manager.stop()

    def _befall(self, fault: Fault) -> None:
        target, _, what = fault.kind.partition("_")
        act: dict[str, Callable[[Fault, str], bool]] = {
            "manager": self._manager, "rank": self._rank, "link": self._fail,
        }  # fmt: skip
        with self._turns[target]:
            began_s = time.perf_counter()
            effective = act[target](fault, what)
            self.hits.append(Hit(fault.kind, began_s, time.perf_counter(), effective))

    def _manager(self, fault: Fault, what: str) -> bool:
        if what == "stop":
            self.manager.send(signal.SIGSTOP)
            time.sleep(fault.lasts_s)
            self.manager.send(signal.SIGCONT)
            return self.manager.process.poll() is None
        killed = self.manager.stop(signal.SIGKILL) == -signal.SIGKILL
        self.failures += not killed
        time.sleep(fault.lasts_s)
        self.manager = started(self._folder, self._lane, int(self.manager.address.rpartition(":")[2]))
        return killed

    def _rank(self, fault: Fault, what: str) -> bool:
        pid = self._pid(fault.rank)
        if pid is None:
            return False
        try:
            os.kill(pid, signal.SIGKILL if what == "kill" else signal.SIGSTOP)
        except ProcessLookupError:
            return False
        if what == "kill":
            return self._again(pid)
        time.sleep(fault.lasts_s)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        return True

    def _again(self, pid: int) -> bool:
        """Wait until another process is the rank of the one killed."""
        deadline_s = time.perf_counter() + 30
        while time.perf_counter() < deadline_s:
            files = {int(path.name.split("-")[2]): int(path.name.split("-")[0]) for path in _files(self._folder)}
            if sum(restart > files[pid] for restart in files.values()) == 2:
                return True
            time.sleep(0.02)
        return False

    def _pid(self, rank: int) -> int | None:
        """The newest process that is this rank."""
        mine = [path.name.split("-") for path in _files(self._folder) if path.name.split("-")[1] == str(rank)]
        return int(max(mine, key=lambda parts: int(parts[0]))[2]) if mine else None

    def _fail(self, fault: Fault, what: str) -> bool:
        with self._link.failing(what, fault.wait_s, fault.one) as trouble:
            time.sleep(fault.lasts_s)
        return trouble.touched > 0


def _files(folder: Path) -> list[Path]:
    return list((folder / "rows").glob("*-*-*"))


def started(folder: Path, lane: bool, port: int = 0) -> ManagerProcess:
    """The manager, with its journal."""
    options = ["--journal", str(folder / "journal"), "--lane" if lane else "--no-lane"]
    return ManagerProcess(folder / "manager.log", port, options)


def quiet(moment_s: float, hits: list[Hit]) -> bool:
    """Whether no fault was there then, nor had just been."""
    return all(not hit.began_s <= moment_s <= hit.ended_s + SETTLE_S for hit in hits)
