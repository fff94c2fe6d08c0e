"""What every adapter shares: a rank's iterations, its own time, the sizes in force and the checks of step.

The adapter calls `draw` and `drawn` around each batch that its loop asks for, `reduction` when the last gradient is
ready, `reduced` when the collective has ended. Knows nothing of frameworks, sockets or threads: those are behind
Channel, OwnTime and the callables passed in. Times in seconds, batches in samples.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lbbsp.errors import OutOfStepError
from lbbsp.protocol import Hello, Report
from lbbsp.worker.channel import Channel, Reduction
from lbbsp.worker.chunked import Ahead, ChunkedCursor
from lbbsp.worker.cursor import Cursor, Epoch, Part
from lbbsp.worker.owntime import OwnTime, Window
from lbbsp.worker.phases import Phases, Spans, seconds
from lbbsp.worker.places import Places
from lbbsp.worker.vector import Place, Vector

WARM_UP_ITERATIONS = 3
SIZE_STEP = 0.05
"""Sizes within one such step of their logarithm count as one: one-off costs are paid once for all of them."""
REMEMBERED = 4096


@dataclass
class Totals:
    """What stats() shows, for this rank."""

    iterations: int = 0
    samples: int = 0
    plan_changes: int = 0
    own_time_s: float = 0.0
    wait_s: float = 0.0
    lags: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED))


class Follower:
    """Follows the job's plans on one rank.

    Args:
        hello: who this rank is; reports carry its job and incarnation.
        channel: the way to the manager and to the other ranks.
        start: sizes before the first plan.
        lookahead: the most batches that any rank's loader reads ahead.
        own: this rank's own time.
        clock: seconds, monotonic.
        read_sensors: readings at the barrier, in the order of hello.sensors.
        ahead: how loader workers fetch chunks ahead; None where they fetch whole batches.
    """

    def __init__(
        self,
        hello: Hello,
        channel: Channel,
        start: Vector,
        lookahead: int,
        own: OwnTime,
        clock: Callable[[], float],
        read_sensors: Callable[[], tuple[float, ...]] = tuple,
        ahead: Ahead | None = None,
    ) -> None:
        self.hello, self.channel, self.own = hello, channel, own
        self.in_force = start
        self.phases = Phases(own.marks)
        self.totals = Totals()
        self.places = Places()
        self.resumed_at: int | None = None
        """`reductions` at the newest resume."""
        self.bound_samples = 0
        """The most that fit this rank's memory, for its reports; 0 says nothing."""
        self.cost = 0.0
        """Of the samples drawn for the iteration under way, by the user's own count; 0 = not counted."""
        self.disturbed = False
        """The iteration under way holds work done twice: its time says nothing of speed."""
        self.claimed = (0, 0)
        """Planned and claimed samples of the iteration under way, where parts of it are claimed."""
        self.fixed_s = 0.0
        """What each micro-batch costs beside its samples; 0: not known."""
        self._lookahead, self._clock, self._read_sensors = lookahead, clock, read_sensors
        self._ahead = ahead
        self._reads_ahead = lookahead > 0 or (ahead is not None and ahead.depth > 0)
        self._sequence = self._base = self._ignore_through = 0
        self._closings: deque[int] = deque(maxlen=REMEMBERED)
        self._reductions = 0
        self._usual_reductions = self._draws = 1
        self._last_place: tuple[int, int, int] | None = None
        self._pending: deque[tuple[dict[str, Any], Window, Spans]] = deque()
        self._checks: dict[int, tuple[Place, ...]] = {}
        self._sizes_seen: set[int] = set()
        self._step_of: dict[int, int] = {}
        self._waiting_since_s: float | None = None
        self._own_time_s = self._wait_s = self._paused_s = 0.0

    @property
    def reductions(self) -> int:
        """Gradient reductions of the job so far, those before a resume included."""
        return self._base + self._sequence

    # --- the loop asks for data

    def begin(self, epoch: Epoch, first_draw: int = 0) -> Cursor:
        """A new iterator begins; waits for the sizes that follow the newest reduction."""
        self._take_sizes(outside=True, sent=True)
        if self._ahead is not None:
            return ChunkedCursor(epoch, self.hello.rank, self._ahead, self.in_force, first_draw)
        return Cursor(epoch, self.hello.rank, self._lookahead, self.in_force, first_draw)

    def draw(self, cursor: Cursor) -> None:
        """A draw begins: waits for the sizes, then own work (reading input) goes on."""
        self._take_sizes()
        self.own.start()
        cursor.at_draw(self.in_force)
        self.places.drawn(cursor)

    def drawn(self, cursor: Cursor, input_s: float) -> Part:
        """The draw has its data; returns what it took."""
        part = cursor.part()
        cursor.undone.append((part, input_s))
        self.phases.drawn()
        fresh = self.in_force.sequence == self._sequence  # in a rest no plan comes
        if cursor is self.places.main and part.based_on_iteration >= 0 and fresh:
            newer = sum(1 for closing in reversed(self._closings) if closing > part.based_on_iteration)
            self.totals.lags.append(newer + 1)
        return part

    def finish(self) -> None:
        """The iterator has ended; what follows is not training until the next draw."""
        self._take_sizes(sent=True)
        self.own.stop()

    # --- the training step

    def reduction(self, last_gradient: Any = None) -> None:
        """The collective is on its way; `last_gradient` is the stamp of the last gradient, default now."""
        self.own.stop(last_gradient)
        self._waiting_since_s = now_s = self._clock()
        self._sequence += 1
        report = self._close() if self._closes() else None
        if self._quiet:
            self.channel.reduction(Reduction(self._sequence, (), now_s, report, paused_s=self._paused_s))
        else:
            places = self._checks[self._sequence] = self.places.now()
            self.channel.reduction(Reduction(self._sequence, places, now_s, report, self._left(), self._paused_s))
        self._paused_s = 0.0
        self.places.reduced()

    def reduced(self) -> None:
        """The collective has ended."""
        if not self._quiet:
            self.channel.reduced()
        if self._waiting_since_s is not None:
            self._wait_s += self._clock() - self._waiting_since_s
            self._waiting_since_s = None
        self.own.start_tail()

    def fall_back(self, start: Vector, hello: Hello, reductions: int) -> None:
        """After a resume: `start` holds until a plan for a later reduction comes; `hello` is the new incarnation's."""
        self._take_sizes(outside=True, sent=True)
        self.hello, self.in_force = hello, start
        self._ignore_through = self._sequence
        self._base = reductions - self._sequence
        self.resumed_at = reductions
        self.places = Places()

    # --- inside

    def _take_sizes(self, *, outside: bool = False, sent: bool = False) -> None:
        """Wait for the sizes that follow the newest reduction; check that rank 0 is where we are."""
        self._paused_s += self.own.end_tail(self._own_time_s + self._wait_s, outside)
        self.own.stop()
        vector, places = self.channel.vector(self.own.usual_tail_s, sent)
        if vector is self.in_force:
            return
        mine = self._checks.get(vector.sequence, ())
        if mine and places and mine[0] != places[0]:
            raise OutOfStepError(_out_of_step(self.hello.rank, mine[0], places[0]))
        while self._checks and next(iter(self._checks)) <= vector.sequence:
            del self._checks[next(iter(self._checks))]
        if vector.sequence > self._ignore_through:
            if vector.version != self.in_force.version:
                self.totals.plan_changes += not np.array_equal(vector.sizes, self.in_force.sizes)
            self.in_force = vector

    @property
    def _quiet(self) -> bool:
        """Whether it is certain that no message follows the newest reduction."""
        return self._sequence <= self.in_force.holds_through

    def _left(self) -> int:
        """Reductions that the epoch under way will still have, if its loop goes on as before."""
        main = self.places.main
        return 0 if main is None else (main.epoch.draws - 1 - main.newest) // max(1, self._draws)

    def _closes(self) -> bool:
        """Whether this reduction ends an iteration: the last of as many as the one before had."""
        main = self.places.main
        place = (id(main), main.epoch.key, main.newest) if main else None
        if place != self._last_place:
            self._usual_reductions = max(1, self._reductions)
            self._reductions = 0
        self._last_place = place
        self._reductions += 1
        return self._reductions == self._usual_reductions

    def _close(self) -> Report | None:
        """End the iteration under way; the newest report whose own time is known."""
        mixed = self.places.mixed
        undone = self.places.take()
        if not undone:
            return self._ready()
        parts = [part for part, _ in undone]
        self._draws = len(parts)
        samples = sum(part.samples for part in parts)
        told = {
            "job": self.hello.job,
            "incarnation": self.hello.incarnation,
            "rank": self.hello.rank,
            "iteration": self._sequence,
            "samples": samples,
            "draws": len(parts),
            "wait_s": self._wait_s,
            "input_s": sum(input_s for _, input_s in undone),
            "settled": self._settled(parts) and not mixed and not self.disturbed,
            "max_samples": self.bound_samples,
            "cost": self.cost,
            "sensors": self._read_sensors(),
            "planned": self.claimed[0],
            "claimed": self.claimed[1],
            "fixed_s": self.fixed_s,
        }
        self.disturbed, self.claimed, self.cost = False, (0, 0), 0.0
        self._closings.append(self._sequence)
        self.totals.iterations += 1
        self.totals.samples += samples
        self.totals.wait_s += self._wait_s
        self._wait_s = 0.0
        self._pending.append((told, self.own.take(), self.phases.take()))
        return self._ready()

    def _settled(self, parts: list[Part]) -> bool:
        """Whether this iteration's time says something of speed: no warm-up, no first time at a size, no peek."""
        seen = [self._seen(part.samples) for part in parts]
        starting = self._reads_ahead and parts[0].draw == self.places.first_draw
        warm = self.totals.iterations >= WARM_UP_ITERATIONS
        seen_or_cut = all(seen) or self.claimed[1] > 0  # what was claimed is worked in other sizes than its sum
        return seen_or_cut and warm and not starting

    def _seen(self, samples: int) -> bool:
        """Whether a batch of about this size has been before; False for none at all, which shows no speed."""
        step = self._step_of.get(samples)
        if step is None:
            step = self._step_of[samples] = round(math.log(samples) / SIZE_STEP) if samples else -1
        if step in self._sizes_seen:
            return step >= 0
        self._sizes_seen.add(step)
        return False

    def _ready(self) -> Report | None:
        newest: Report | None = None
        while self._pending:
            told, window, spans = self._pending[0]
            own_time_s = window.own_time_s(self.own.marks)
            if own_time_s is None:
                break
            self._pending.popleft()
            self._own_time_s = max(own_time_s, 1e-9)
            self.totals.own_time_s += self._own_time_s
            phases_s = seconds(spans, self.own.marks) if spans else ()
            newest = Report(own_time_s=self._own_time_s, phases_s=phases_s, **told)
        return newest


def _out_of_step(rank: int, mine: Place, rank0: Place) -> str:
    if (mine.epoch, mine.draw) != (rank0.epoch, rank0.draw):
        return (
            f"rank {rank} is at epoch {mine.epoch} draw {mine.draw}, rank 0 at epoch {rank0.epoch} "
            f"draw {rank0.draw}: every rank must run the same loop, with the same draws between gradient "
            "reductions and the same set_epoch calls; a look into the loader on one rank must take one batch, and not "
            "between two backward passes of one batch"
        )
    return (
        f"rank {rank} has another order of samples than rank 0 in epoch {mine.epoch}: a sampler must give the "
        "same order on all ranks when seeded alike; use DistributedSampler or shuffle=True"
    )
