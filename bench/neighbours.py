"""Neighbours of a worker: when they are busy, fixed before any predictor was tuned on what they cause.

Each generator gives, for each neighbour, the intervals in which it spins, (start_s, end_s). The parameters below were
committed before the first recording; odd seeds are for tuning, even seeds are looked at once, at the end.
Run as a program, it is one neighbour: intervals as JSON on standard input, times from the moment it reads them.
"""

import csv
import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

Intervals = list[tuple[float, float]]

STAYS_GAP_S, STAYS_LEAST_S, STAYS_SHAPE, STAYS_MOST_S, STAYS_NEIGHBOURS = 3.0, 1.0, 1.5, 20.0, 2
"""Neighbours that come and go: exponential gaps, heavy-tailed (Pareto) stays."""

BURST_BUSY_S, BURST_IDLE_S = 0.015, 0.030
"""Bursts shorter than an iteration: exponential, both."""

TRACE_ROW_S, TRACE_SLICE_S = 1.0, 0.020
"""A CPU trace: one row a second, of each slice the traced share is busy."""


def stays(rng: np.random.Generator, length_s: float, trace: Path | None) -> list[Intervals]:
    """Neighbours that come and go, for seconds."""
    found = []
    for _ in range(STAYS_NEIGHBOURS):
        now_s, intervals = 0.0, []
        while now_s < length_s:
            now_s += rng.exponential(STAYS_GAP_S)
            stay_s = min(STAYS_LEAST_S * (1.0 + rng.pareto(STAYS_SHAPE)), STAYS_MOST_S)
            intervals.append((now_s, now_s + stay_s))
            now_s += stay_s
        found.append(intervals)
    return found


def bursts(rng: np.random.Generator, length_s: float, trace: Path | None) -> list[Intervals]:
    """One neighbour with bursts shorter than an iteration."""
    count = int(2 * length_s / (BURST_BUSY_S + BURST_IDLE_S))
    starts = np.cumsum(rng.exponential(BURST_IDLE_S, count)) + np.arange(count) * BURST_BUSY_S
    busy = rng.exponential(BURST_BUSY_S, count)
    shift = np.cumsum(busy - BURST_BUSY_S)
    ends = starts + shift
    return [list(zip((ends - busy).tolist(), ends.tolist(), strict=True))]


def traced(rng: np.random.Generator, length_s: float, trace: Path | None) -> list[Intervals]:
    """One neighbour that uses as much of the core as a recorded machine did, relative to its busiest row."""
    if trace is None:
        raise SystemExit("the generator `traced` needs --trace FILE, a gzip CSV with the columns worker and cpu")
    rows = _cpu_rows(trace)
    worker = sorted(rows)[rng.integers(len(rows))]
    used = np.array(rows[worker])
    begin = rng.integers(max(len(used) - int(length_s / TRACE_ROW_S) - 1, 1))
    part = used[begin : begin + int(length_s / TRACE_ROW_S) + 1]
    share = np.repeat(part / max(part.max(), 1e-9), int(TRACE_ROW_S / TRACE_SLICE_S))
    starts = np.arange(len(share)) * TRACE_SLICE_S
    return [list(zip(starts.tolist(), (starts + share * TRACE_SLICE_S).tolist(), strict=True))]


def _cpu_rows(trace: Path) -> dict[str, list[float]]:
    rows: dict[str, list[float]] = {}
    with gzip.open(trace, "rt", newline="") as file:
        for row in csv.DictReader(file):
            if row["cpu"]:
                rows.setdefault(row["worker"], []).append(float(row["cpu"]))
    return rows


GENERATORS = {"stays": stays, "bursts": bursts, "traced": traced}


class Neighbours:
    """Runs them as processes on one core, from start() to stop()."""

    def __init__(self, plans: list[Intervals], core: int) -> None:
        self._plans, self._core = plans, core
        self._processes: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        """Start all; their time begins when they have read their plan.

        Each in a session of its own: all of one session together may get no more of a core than one rank does.
        """
        for _ in self._plans:
            command = [sys.executable, __file__, str(self._core)]
            self._processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True))
        for process, plan in zip(self._processes, self._plans, strict=True):
            process.stdin.write(json.dumps(plan))
            process.stdin.close()

    def stop(self) -> None:
        """End those that still run."""
        for process in self._processes:
            process.terminate()
            process.wait()


def spin(intervals: Intervals) -> None:
    """Be busy in these intervals, asleep between them."""
    begin_s = time.perf_counter()
    for start_s, end_s in intervals:
        left_s = start_s - (time.perf_counter() - begin_s)
        if left_s > 0:
            time.sleep(left_s)
        while time.perf_counter() - begin_s < end_s:
            pass


if __name__ == "__main__":
    os.sched_setaffinity(0, {int(sys.argv[1])})
    spin(json.load(sys.stdin))
