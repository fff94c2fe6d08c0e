"""How fast each worker works at each moment: what a task's end and its progress follow from.

Knows nothing of schemes. Work is counted in samples (a task's fixed cost too), speed in samples/s, times in seconds.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class Speeds(Protocol):
    """What the virtual clock asks of workers. They are the same for every scheme: the load, not the scheme, slows."""

    workers: int

    def end_s(self, worker: int, start_s: float, work: float) -> float:
        """When work that starts then will be done."""

    def progress(self, worker: int, start_s: float, end_s: float, now_s: float) -> float:
        """Share, 0 .. 1, of the work from start_s to end_s that is done by now."""

    def neighbours(self, worker: int, time_s: float) -> float:
        """Busy processes that share the worker's core; NaN = no reading."""


class Schedule:
    """Speeds that change at given times, over and over again.

    Args:
        edges_s: of each worker: start, at 0, of each piece, and the end of the last one.
        rates: of each worker: samples/s within each piece, above 0.
        busy: of each worker: neighbours within each piece, where known.
    """

    def __init__(self, edges_s: Sequence[Array], rates: Sequence[Array], busy: Sequence[Array] | None = None) -> None:
        self.workers = len(rates)
        self._edges = [np.asarray(edges, dtype=float) for edges in edges_s]
        self._rates = [np.asarray(rate, dtype=float) for rate in rates]
        self._busy = busy
        for worker, (edges, rate) in enumerate(zip(self._edges, self._rates, strict=True)):
            if len(edges) != len(rate) + 1 or edges[0] != 0 or not (np.diff(edges) > 0).all() or not (rate > 0).all():
                raise ValueError(f"worker {worker}: wanted edges that rise from 0, and one speed above 0 between two")
        self._done = [np.concatenate([[0.0], np.cumsum(rate * np.diff(edges))])
                      for edges, rate in zip(self._edges, self._rates, strict=True)]  # fmt: skip

    def end_s(self, worker: int, start_s: float, work: float) -> float:
        """When work that starts then will be done, whatever changes meanwhile."""
        edges, done = self._edges[worker], self._done[worker]
        rounds, rest = divmod(self.done_by(worker, start_s) + work, done[-1])
        piece = min(int(np.searchsorted(done, rest, side="right")) - 1, len(edges) - 2)
        end_s = rounds * edges[-1] + edges[piece] + (rest - done[piece]) / self._rates[worker][piece]
        return max(float(end_s), start_s)

    def progress(self, worker: int, start_s: float, end_s: float, now_s: float) -> float:
        """Share of the work from start_s to end_s that is done by now."""
        if now_s >= end_s:
            return 1.0
        start = self.done_by(worker, start_s)
        return max(0.0, (self.done_by(worker, now_s) - start) / (self.done_by(worker, end_s) - start))

    def neighbours(self, worker: int, time_s: float) -> float:
        """Busy neighbours at that moment; NaN where the load doesn't say."""
        if self._busy is None:
            return float("nan")
        return float(self._busy[worker][self._piece(worker, time_s % self._edges[worker][-1])])

    def _piece(self, worker: int, within_s: float) -> int:
        edges = self._edges[worker]
        return min(int(np.searchsorted(edges, within_s, side="right")) - 1, len(edges) - 2)

    def done_by(self, worker: int, time_s: float) -> float:
        """Work that the worker does from time 0 until then."""
        edges, done = self._edges[worker], self._done[worker]
        rounds, within_s = divmod(time_s, edges[-1])
        piece = self._piece(worker, within_s)
        return float(rounds * done[-1] + done[piece] + (within_s - edges[piece]) * self._rates[worker][piece])


class Drawn:
    """Every task's time is drawn anew, as theory likes it: work / rate times a random factor.

    Args:
        workers: of the job.
        rate: samples/s at factor 1.
        factors: drawn beforehand, (tasks,), used in turn by whatever task starts next.
    """

    def __init__(self, workers: int, rate: float, factors: Array) -> None:
        self.workers = workers
        self._rate, self._factors, self._next = rate, np.asarray(factors, dtype=float), 0

    def end_s(self, worker: int, start_s: float, work: float) -> float:
        """When work that starts then will be done."""
        factor = float(self._factors[self._next % len(self._factors)])
        self._next += 1
        return start_s + work / self._rate * factor

    def progress(self, worker: int, start_s: float, end_s: float, now_s: float) -> float:
        """Share of the work done by now, which goes on evenly."""
        return min(1.0, (now_s - start_s) / (end_s - start_s)) if end_s > start_s else 1.0

    def neighbours(self, worker: int, time_s: float) -> float:
        """No reading."""
        return float("nan")
