"""Where worker speeds come from: generators (steady, seconds, bursts, drawn task times) and recordings.

Knows nothing of schemes. `rate` is a worker's undisturbed speed in samples/s; a core that n neighbours share gives
the worker 1/(n + 1) of it. Every generator follows its seed alone.
"""

import csv
import gzip
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.schemes.speeds import Drawn, Schedule
from lbbsp.errors import ConfigError

Array = npt.NDArray[np.float64]

PERIOD_S = 900.0
"""Generated loads start again after this long."""
NEIGHBOURS = 3
"""Processes a core that come and go."""
NOISE_S, NOISE = 0.05, 0.03
"""Without neighbours, speed still changes by this share (standard deviation) this often."""


def steady(workers: int, rate: float, seed: int) -> Schedule:
    """Mixed machines: of four workers one at half speed, one at three quarters; 3 % noise, nothing else."""
    rng = np.random.default_rng([seed, 1])
    pieces = round(PERIOD_S / NOISE_S)
    kinds = np.array([1.0, 1.0, 0.75, 0.5])[np.arange(workers) % 4]
    edges = np.linspace(0.0, PERIOD_S, pieces + 1)
    noise = np.exp(NOISE * rng.standard_normal((workers, pieces)))
    return Schedule([edges] * workers, list(rate * kinds[:, None] * noise), [np.zeros(pieces)] * workers)


def seconds(workers: int, rate: float, seed: int) -> Schedule:
    """Neighbours that stay for 3 s and are away for 8 s on average."""
    return _neighbours(workers, rate, np.random.default_rng([seed, 2]), 3.0, 8.0)


def bursts(workers: int, rate: float, seed: int) -> Schedule:
    """Neighbours that stay for 0.15 s and are away for 0.4 s on average: about as long as an iteration."""
    return _neighbours(workers, rate, np.random.default_rng([seed, 3]), 0.15, 0.4)


LOADS = {"steady": steady, "seconds": seconds, "bursts": bursts}


def _neighbours(workers: int, rate: float, rng: np.random.Generator, on_s: float, off_s: float) -> Schedule:
    all_edges, all_rates, all_busy = [], [], []
    for _ in range(workers):
        changes = [_on_off(rng, on_s, off_s) for _ in range(NEIGHBOURS)]
        times = np.concatenate([time for time, _ in changes])
        order = np.argsort(times, kind="stable")
        busy = np.cumsum(np.concatenate([step for _, step in changes])[order])
        times, busy = np.concatenate([[0.0], times[order]]), np.concatenate([[0.0], busy])
        kept = np.diff(times, append=PERIOD_S) > 0
        all_edges.append(np.append(times[kept], PERIOD_S))
        all_rates.append(rate / (1.0 + busy[kept]))
        all_busy.append(busy[kept])
    return Schedule(all_edges, all_rates, all_busy)


def _on_off(rng: np.random.Generator, on_s: float, off_s: float) -> tuple[Array, Array]:
    """Times at which one neighbour comes (+1) and goes (-1); in the long run's state at time 0."""
    count = 8 + round(1.5 * PERIOD_S / (on_s + off_s))
    stays = rng.exponential([off_s, on_s], (count, 2)).ravel()
    steps = np.tile([1.0, -1.0], count)
    if rng.random() < on_s / (on_s + off_s):
        stays[0] = 0.0
    times = np.cumsum(stays)
    within = times < PERIOD_S
    return times[within], steps[within]


def drawn(kind: str, workers: int, rate: float, seed: int, tasks: int = 200_000) -> Drawn:
    """Independent task times: `exponential` 1 + Exp(1); `pareto` Pareto(1.5) from 1; `straggler` 1, or 4 for 1 in 8.

    Raises:
        ConfigError: another kind.
    """
    rng = np.random.default_rng([seed, 4])
    if kind == "exponential":
        return Drawn(workers, rate, 1.0 + rng.exponential(1.0, tasks))
    if kind == "pareto":
        return Drawn(workers, rate, 1.0 + rng.pareto(1.5, tasks))
    if kind == "straggler":
        return Drawn(workers, rate, np.where(rng.random(tasks) < 1 / 8, 4.0, 1.0) * (1 + 0.05 * rng.random(tasks)))
    raise ConfigError(f"unknown task times {kind!r}; known: exponential, pareto, straggler")


def recording(path: Path, workers: int, fixed_samples: float, seed: int = 0) -> Schedule:
    """Speeds from a recording with columns worker, iteration, samples, time_s (plain or gzip).

    Each row becomes a piece of its worker's time, time_s long, at (samples + fixed_samples) / time_s. More workers
    than were recorded share the recordings, from random moments on.

    Raises:
        ConfigError: no such file, a column is missing, or a row holds no speed.
    """
    rows = _read(path)
    recorded = [np.array(rows[name]) for name in rows]
    rng = np.random.default_rng([seed, 5])
    edges, rates = [], []
    for worker in range(workers):
        samples, time_s = recorded[worker % len(recorded)].T
        if worker >= len(recorded):
            start = int(rng.integers(len(samples)))
            samples, time_s = np.roll(samples, -start), np.roll(time_s, -start)
        edges.append(np.concatenate([[0.0], np.cumsum(time_s)]))
        rates.append((samples + fixed_samples) / time_s)
    return Schedule(edges, rates)


def _read(path: Path) -> dict[str, list[tuple[float, float]]]:
    if not path.is_file():
        raise ConfigError(f"no recording {path}: wanted a CSV, plain or .gz, with worker,iteration,samples,time_s")
    rows: dict[str, list[tuple[float, float]]] = {}
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for number, row in enumerate(csv.DictReader(line for line in file if not line.startswith("#")), 2):
            try:
                values = float(row["samples"]), float(row["time_s"])
                worker = row["worker"]
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigError(f"{path}, row {number}: wanted worker,iteration,samples,time_s; {error!r}") from error
            if not (values[0] > 0 and 0 < values[1] < float("inf")):
                raise ConfigError(f"{path}, row {number}: samples and time_s must be above 0, got {values}")
            rows.setdefault(worker, []).append(values)
    if not rows:
        raise ConfigError(f"{path} has no rows")
    return rows
