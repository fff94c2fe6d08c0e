"""A cursor whose loader fetches small chunks of what a rank is likely to take; the draw takes what the plan says.

Each iteration's likely part is dealt into one task a loader worker. A task is made `depth` iterations before its
draw, from the home in force then and the newest sizes; what a plan moves in between is fetched at the draw, and what
was fetched in vain is dropped. Pure; positions and sizes in samples.
"""

from collections import deque
from dataclasses import dataclass, field

from lbbsp.core.sizing import short_slices
from lbbsp.worker.cursor import Cursor, Epoch, Part
from lbbsp.worker.homes import Interval, portions, split
from lbbsp.worker.vector import IntArray, Vector


@dataclass(frozen=True)
class Ahead:
    """How a rank's loader fetches ahead."""

    tasks: int = 1
    """Tasks an iteration: one a loader worker."""
    depth: int = 0
    """Iterations between a task's making and its draw on this rank; 0 without loader workers."""
    homes_depth: int = 0
    """The largest depth of any rank: a change of homes takes effect no earlier."""


@dataclass
class Piece:
    """Where the samples of one interval are: in a fetched task, from an offset on, or nowhere yet."""

    interval: Interval
    task: int | None = None
    offset: int = 0


@dataclass
class Task:
    """What one loader task fetches: intervals of positions in the epoch's order, in this order."""

    intervals: list[Interval] = field(default_factory=list)

    @property
    def samples(self) -> int:
        """Samples in all."""
        return sum(stop - start for start, stop in self.intervals)


class ChunkedCursor(Cursor):
    """One iterator over an epoch on one rank, with loader tasks instead of whole parts."""

    def __init__(self, epoch: Epoch, rank: int, ahead: Ahead, start: Vector, first_draw: int = 0) -> None:
        super().__init__(epoch, rank, 0, start, first_draw)
        self._ahead = ahead
        self._homes: dict[int, IntArray] = {}
        self._made: deque[Task] = deque()
        self._unread: deque[Task] = deque()
        self.fetched_in_vain = self.fetched_late = 0

    @property
    def ahead(self) -> Ahead:
        """How the rank's loader fetches ahead."""
        return self._ahead

    def at_draw(self, in_force: Vector) -> None:
        """A draw begins; its homes hold for the draw that is `homes_depth` further on."""
        super().at_draw(in_force)
        self._homes[self.newest + self._ahead.homes_depth] = in_force.homes

    def next_task(self) -> Task | None:
        """The next task for the loader, None at the end."""
        if not self._made:
            if self._read >= self.epoch.draws:
                return None
            likely = self._intervals(self._read, self.in_force)
            self._made.extend(Task(part) for part in split(likely, self._ahead.tasks))
            self._read += 1
        task = self._made.popleft()
        self._unread.append(task)
        return task

    def tasks_of_draw(self) -> list[Task]:
        """The tasks that were made for the newest draw, in order; none without loader workers."""
        if not self._ahead.depth:
            return []
        return [self._unread.popleft() for _ in range(self._ahead.tasks)]

    def part(self) -> Part:
        """The part of the newest draw, by the sizes in force."""
        sizes = self._scaled(self.newest, self.in_force.sizes)
        start = self.newest * self.epoch.global_batch
        return Part(self.newest, start, int(sizes[self._rank]), int(sizes.sum()), self.in_force.based_on_iteration)

    def pieces(self, tasks: list[Task]) -> list[Piece]:
        """Where each interval of the newest draw's part is, among its tasks."""
        pieces: list[Piece] = []
        for interval in self._intervals(self.newest, self.in_force):
            pieces += found(interval, tasks)
        late = sum(stop - start for piece in pieces if piece.task is None for start, stop in [piece.interval])
        wanted = sum(stop - start for piece in pieces for start, stop in [piece.interval])
        self.fetched_late += late
        self.fetched_in_vain += sum(task.samples for task in tasks) - (wanted - late)
        for old in [draw for draw in self._homes if draw <= self.newest]:
            del self._homes[old]
        return pieces

    def indices_of(self, intervals: list[Interval]) -> list[int]:
        """Dataset indices of intervals of positions."""
        return [index for start, stop in intervals for index in self.epoch.order[start:stop].tolist()]

    def _intervals(self, draw: int, vector: Vector) -> list[Interval]:
        """Absolute positions of this rank's part of a draw under these sizes."""
        homes = self._homes.get(draw, self._start.homes)
        base = draw * self.epoch.global_batch
        mine = portions(self._scaled(draw, homes), self._scaled(draw, vector.sizes), self._rank)
        return [(base + start, base + stop) for start, stop in mine]

    def _scaled(self, draw: int, sizes: IntArray) -> IntArray:
        """Sizes for that draw: fewer in the short last one."""
        batch = self.epoch.global_batch
        remaining = min(batch, len(self.epoch.order) - draw * batch)
        return sizes if remaining == batch else short_slices(sizes, batch, remaining)[1]


def found(interval: Interval, tasks: list[Task]) -> list[Piece]:
    """An interval cut along what the tasks fetched of it."""
    start, stop = interval
    pieces: list[Piece] = []
    for number, task in enumerate(tasks):
        offset = 0
        for first, last in task.intervals:
            low, high = max(start, first), min(stop, last)
            if low < high:
                pieces.append(Piece((low, high), number, offset + low - first))
            offset += last - first
    pieces.sort(key=lambda piece: piece.interval)
    return _with_gaps(interval, pieces)


def _with_gaps(interval: Interval, found: list[Piece]) -> list[Piece]:
    whole: list[Piece] = []
    position, stop = interval
    for piece in found:
        if position < piece.interval[0]:
            whole.append(Piece((position, piece.interval[0])))
        whole.append(piece)
        position = piece.interval[1]
    if position < stop:
        whole.append(Piece((position, stop)))
    return whole
