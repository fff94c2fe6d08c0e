"""Ranks as threads that drive the real Follower, Cursor, Relay and Client over a link in memory.

Each schedule is a random program: accumulation, several reductions a draw, joint breaks, second iterators, resumes;
peeks and pauses befall single ranks. Seconds.
"""

import threading
import time
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from mesh import ChunkReading, MemoryLink, Mesh, Reading
from random_manager import KINDS, Faults, travel

from lbbsp.core.bounds import Bounds
from lbbsp.protocol import Hello
from lbbsp.worker.channel import Receiver
from lbbsp.worker.chunked import Ahead, ChunkedCursor
from lbbsp.worker.client import Client
from lbbsp.worker.cursor import Cursor, Epoch
from lbbsp.worker.follower import Follower
from lbbsp.worker.owntime import HostMarks, OwnTime
from lbbsp.worker.relay import Relay
from lbbsp.worker.vector import Vector

WINDOW = 12
"""Iterations with faults, then as many without."""


@dataclass(frozen=True)
class Schedule:
    """What one seed means for all ranks."""

    seed: int
    world_size: int
    bounds: Bounds
    samples: int
    lookaheads: tuple[int, ...]
    chunks: bool
    reductions: int
    """Reductions a draw."""
    peeks: float
    named: bool
    """Epochs are named by the user (set_epoch), else by the reductions before them."""
    faults: Faults
    iterations: int = 4 * WINDOW

    @staticmethod
    def of(seed: int) -> "Schedule":
        """The schedule of a seed."""
        random = Random(seed)
        world_size = random.choice([2, 2, 3, 4])
        grain = random.choice([1, 1, 2])
        batch = grain * random.randint(2 * world_size, 20)
        kinds = random.sample(KINDS, random.randint(2, len(KINDS)))
        return Schedule(
            seed=seed,
            world_size=world_size,
            bounds=Bounds(batch, np.zeros(world_size), np.full(world_size, batch), grain),
            samples=random.randint(batch // 2, 14 * batch),
            lookaheads=tuple(random.choice([0, 0, 1, 2, 4]) for _ in range(world_size)),
            chunks=random.random() < 0.5,
            reductions=random.choice([1, 1, 2]),
            peeks=random.choice([0.0, 0.05, 0.2]),
            named=random.random() < 0.5,
            faults=Faults(
                rates={kind: random.uniform(0.05, 0.3) for kind in kinds},
                delay_s=random.choice([0.003, 0.02]),
                away=(random.choice([3, 2 * WINDOW + 3]),) if random.random() < 0.4 else (),
                away_s=random.uniform(0.01, 0.06),
                quiet=lambda iteration: iteration // WINDOW % 2 == 1,
            ),
        )


@dataclass
class Account:
    """What one rank saw."""

    sizes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """In force after each reduction."""
    based_on: list[int] = field(default_factory=list)
    draws: list[tuple[int, int, list[int]]] = field(default_factory=list)
    """Iterator, draw and positions of each joint draw."""
    led: list[bool] = field(default_factory=list)
    """Whether the iterator of a joint draw was the main one."""
    changes: int = 0
    iterations: int = 0
    rested: int = 0
    """Draws after reductions without a message."""


class SimulatedRank(threading.Thread):
    """Runs the schedule's program as one rank."""

    def __init__(self, schedule: Schedule, rank: int, mesh: Mesh, address: str) -> None:
        super().__init__(name=f"rank {rank} of schedule {schedule.seed}", daemon=True)
        self.schedule, self.rank, self.mesh, self.address = schedule, rank, mesh, address
        self.joint, self.own = Random(schedule.seed), Random(schedule.seed * 1009 + rank + 1)
        self.account = Account()
        self.fault: BaseException | None = None
        self._loads = self._iterators = self._epoch = 0
        self._resumed = (-1, 0, 0)
        self._kept: list[Cursor] = []

    def run(self) -> None:
        try:
            self._setup()
            self._program()
            self.follower.finish()
        except BaseException as fault:
            self.fault = fault
            self.mesh.reduction.abort()
        finally:
            self.channel.close()

    def _setup(self) -> None:
        schedule = self.schedule
        hello = self._hello()
        client = Client(self.address, hello)
        link = MemoryLink(self.mesh, self.rank)
        start = Vector(schedule.bounds.equal())
        most = max(schedule.lookaheads)
        mine = schedule.lookaheads[self.rank]
        self.ahead = Ahead(self.own.choice([1, 2]) if mine else 1, mine, most) if schedule.chunks and most else None
        if self.rank == 0:
            self.channel: Any = Relay(client, link, start, schedule.bounds, time.perf_counter)
        else:
            self.channel = Receiver(client, link, start)
        own = OwnTime(HostMarks(time.perf_counter), time.perf_counter)
        lookahead = 0 if self.ahead else most
        self.follower = Follower(hello, self.channel, start, lookahead, own, time.perf_counter, ahead=self.ahead)
        client.pump()
        if self.rank == 0:
            self.channel.start()
        until_s = time.perf_counter() + 5
        while client.away and time.perf_counter() < until_s:
            if self.rank:
                client.pump(0.01)
            else:
                time.sleep(0.01)

    def _hello(self) -> Hello:
        bounds = self.schedule.bounds
        return Hello(
            job=f"schedule {self.schedule.seed}",
            incarnation=f"load {self._loads}",
            rank=self.rank,
            world_size=bounds.world_size,
            global_batch=bounds.global_batch,
            min_samples=int(bounds.min_samples[self.rank]),
            max_samples=int(bounds.max_samples[self.rank]),
            granularity=bounds.granularity,
        )

    # --- the program; what `joint` decides is alike on all ranks

    def _program(self) -> None:
        while self.account.iterations < self.schedule.iterations:
            iterator = self._begin()
            if self._iterate(iterator):
                self._epoch += 1
            elif self.joint.random() < 0.5:
                self._resume(iterator)
            self._forget(iterator.cursor)

    def _iterate(self, iterator: Any) -> bool:
        """Train until the epoch ends (True), or the loop breaks."""
        while not iterator.cursor.finished:
            self._perhaps_peek()
            for _ in range(self.joint.choice([1, 1, 1, 2, 3])):
                if not iterator.cursor.finished:
                    self._draw(iterator)
            if self.joint.random() < 0.03:
                return False
            self._perhaps_peek()
            for _ in range(self.schedule.reductions):
                self._reduce()
            self.account.iterations += 1
            if self.account.iterations >= self.schedule.iterations:
                return False
            if self.joint.random() < 0.03:
                self._second()
            if self.joint.random() < 0.04:
                return False
        self.follower.finish()
        self._resumed = (-1, 0, 0)
        return True

    def _second(self) -> None:
        """All ranks train on another iterator for some draws."""
        other = self._begin()
        for _ in range(self.joint.randint(1, 4)):
            if not other.cursor.finished:
                self._draw(other)
                self._reduce()
        self._forget(other.cursor)

    def _resume(self, iterator: Any) -> None:
        """Load the state of here and now."""
        self._loads += 1
        start = Vector(self.schedule.bounds.equal())
        cursor = iterator.cursor
        self._resumed = (self.follower.reductions, cursor.epoch.key, cursor.newest + 1)
        hello = self._hello()
        self.follower.fall_back(start, hello, self.follower.reductions)
        self.channel.restart(hello, start, self.schedule.bounds)

    # --- what a loop does

    def _place(self) -> tuple[int, int]:
        """Key and first draw of an iterator that begins now, as loaders find it."""
        key = self._epoch if self.schedule.named else 1000 + self.follower.reductions
        reductions, epoch, consumed = self._resumed
        if self.follower.reductions == reductions and (epoch == key or not self.schedule.named):
            return epoch, consumed
        return key, 0

    def _begin(self, joint: bool = True) -> Any:
        key, first = self._place()
        random = Random(f"{self.schedule.seed} {key}")
        order = np.array(random.sample(range(self.schedule.samples), self.schedule.samples))
        epoch = Epoch(key, order, key * 7 + 1, self.schedule.bounds.global_batch)
        cursor = self.follower.begin(epoch, first)
        self._iterators += joint
        ahead: Any = self.ahead
        reading: Any = ChunkReading(cursor, ahead) if isinstance(cursor, ChunkedCursor) else None
        if reading is None:
            reading = Reading(cursor, self.schedule.lookaheads[self.rank])
        reading.number = self._iterators
        return reading

    def _forget(self, cursor: Cursor) -> None:
        self.follower.places.forget(cursor)

    def _draw(self, iterator: Any, joint: bool = True) -> None:
        follower, cursor = self.follower, iterator.cursor
        follower.draw(cursor)
        positions = iterator.next()
        part = follower.drawn(cursor, 0.0)
        assert len(positions) == part.samples
        if joint:
            self.account.draws.append((iterator.number, cursor.newest, positions))
            self.account.led.append(cursor is follower.places.main)
            self._note()

    def _note(self) -> None:
        vector = self.follower.in_force
        self.account.sizes[self.follower.reductions] = tuple(vector.sizes.tolist())
        self.account.rested += vector.sequence < self.follower._sequence and vector.rest > 0
        if not self.account.based_on or vector.based_on_iteration != self.account.based_on[-1]:
            self.account.based_on.append(vector.based_on_iteration)

    def _reduce(self) -> None:
        pause = self.own.random()
        time.sleep(0.002 + 0.003 * self.own.random() + (0.08 if pause < 0.004 else 0.0))
        self.follower.reduction()
        self.mesh.reduction.wait()
        if self.rank == 0:
            travel(self.channel, self.schedule.faults.quiet(self.channel._sequence))
        self.follower.reduced()
        time.sleep(0.001)

    def _perhaps_peek(self) -> None:
        """This rank alone looks into the loader; some peeks live on for a while."""
        if self._kept and self.own.random() < 0.5:
            self._forget(self._kept.pop())
        if self.own.random() >= self.schedule.peeks:
            return
        peek = self._begin(joint=False)
        if self.own.random() < 0.9 and not peek.cursor.finished:
            self._draw(peek, joint=False)
        if self.own.random() < 0.3:
            self._kept.append(peek.cursor)
        else:
            self._forget(peek.cursor)
