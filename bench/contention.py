"""Records a real training worker on one pinned core under real contention, as a recording for `lbbsp compare`.

A small convolutional network trains on that core while neighbours of a generator (bench/neighbours.py) are busy on
it. The recording of --length seconds is cut into --workers stretches that stand for workers of one job, each with
its own neighbours. Sizes wander, so that fixed costs can be told. Sensors are those of real jobs, read just before
each iteration. Keep the machine otherwise idle: sensors of the machine see all of it.
"""

import argparse
import csv
import gzip
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from neighbours import GENERATORS, Neighbours

from lbbsp.worker.sensors import Sensors

SIZES = (288, 384, 480)
HELD_ITERATIONS = 12
WARM_UP_S = 3.0


def main() -> None:
    """Record, write, and print what was recorded."""
    options = _options()
    os.sched_setaffinity(0, {options.core})
    rng = np.random.default_rng(options.seed)
    length_s = WARM_UP_S + options.length
    neighbours = Neighbours(GENERATORS[options.generator](rng, length_s, options.trace), options.core)
    sensors = Sensors()
    step = _training(options.seed)
    neighbours.start()
    try:
        rows = [row for row in _rows(step, sensors, rng, length_s) if row[0] >= WARM_UP_S]
    finally:
        neighbours.stop()
    _write(options.out, _cut(rows, options.workers, options.length), sensors.names)
    times_ms = 1e3 * np.array([row[2] for row in rows])
    print(f"# python bench/contention.py {' '.join(sys.argv[1:])}")
    print(f"{len(rows)} iterations, own time {np.percentile(times_ms, [5, 50, 95]).round(1)} ms (5, 50, 95 %)")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("generator", choices=sorted(GENERATORS))
    parser.add_argument("--seed", type=int, default=1, help="odd: tuning; even: looked at once")
    parser.add_argument("--length", type=float, default=100.0, help="seconds")
    parser.add_argument("--workers", type=int, default=4, help="stretches of the recording")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--trace", type=Path, help="gzip CSV with worker and cpu (a share), for `traced`")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.csv.gz")
    return parser.parse_args()


def _training(seed: int):
    """One training step of so many samples, as a function."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 144, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(max(SIZES), 1, 28, 28), torch.randint(0, 10, (max(SIZES),))

    def step(samples: int) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[:samples]), labels[:samples]).backward()
        optimizer.step()

    return step


def _rows(step, sensors: Sensors, rng: np.random.Generator, length_s: float) -> Iterator[tuple]:
    """(start_s, samples, own_time_s, readings) of each iteration."""
    begin_s = time.perf_counter()
    iteration, samples = 0, SIZES[1]
    while (start_s := time.perf_counter() - begin_s) < length_s:
        if iteration % HELD_ITERATIONS == 0:
            samples = int(rng.choice(SIZES))
        readings = sensors.read()
        work_s = time.perf_counter()
        step(samples)
        yield start_s, samples, time.perf_counter() - work_s, readings
        iteration += 1


def _cut(rows: list[tuple], workers: int, length_s: float) -> Iterator[tuple]:
    """Stretches of equal length, as workers that start together."""
    stretch_s = length_s / workers
    counts = [0] * workers
    for start_s, samples, own_time_s, readings in rows:
        worker = min(int((start_s - WARM_UP_S) / stretch_s), workers - 1)
        began_s = start_s - WARM_UP_S - worker * stretch_s
        yield f"w{worker}", counts[worker], f"{began_s:.5f}", samples, f"{own_time_s:.6f}", *map(_cell, readings)
        counts[worker] += 1


def _cell(reading: float) -> str:
    return "" if reading != reading else f"{reading:.5g}"


def _write(path: Path, rows: Iterator[tuple], sensors: tuple[str, ...]) -> None:
    with gzip.open(path, "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("worker", "iteration", "start_s", "samples", "own_time_s", *sensors))
        writer.writerows(rows)


if __name__ == "__main__":
    main()
