"""What predictors cost at scale, and what narx owes to its parts.

--scale: milliseconds (median) to observe and to predict for so many workers, and megabytes that a predictor holds.
--ablation FILES: error of one forecast in % of mean speed over the second half of recordings: sensors none, lagged
(known one iteration before) or at the barrier; residual or absolute; horizon 1, 4, 8; arx with the same sensors;
and the hindsight forecast, which averages the most similar moments of the whole recording, the future included
(best of several counts and choices of sensors): about what can be known at all.
"""

import argparse
import pickle
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from lbbsp.predictors import PREDICTORS, make
from lbbsp.recording import Recording, read
from lbbsp.replay import forecast
from lbbsp.world import World

TRAIN_STEPS = 20
NEAREST = (3, 8, 15, 30)
BLOCK = 500


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, metavar="WORKERS")
    parser.add_argument("--sensors", type=int, default=8, help="of each worker, for --scale")
    parser.add_argument("--ablation", type=Path, nargs="+", metavar="FILE", default=[])
    parser.add_argument("--limit", type=int, help="iterations of a recording, for --ablation")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"# python bench/predictors.py {' '.join(sys.argv[1:])}")
    if options.scale:
        _print_scale(options.scale, options.sensors, options.seed)
    for path in options.ablation:
        _print_ablation(read(path), options.limit, options.seed)


def _print_scale(workers: int, sensors: int, seed: int) -> None:
    print(f"{workers} workers, {sensors} sensors   [ms: median of 60 iterations after 60]")
    print(f"{'predictor':>10} {'observe':>9} {'predict':>9} {'both':>9} {'train step':>11} {'MB':>7}")
    for name in PREDICTORS:
        options = {"background": False, "refit": 10**9} if name == "arima" else {}
        observe_ms, predict_ms, train_ms, megabytes = _cost(name, workers, sensors, seed, options)
        both_ms = observe_ms + predict_ms
        row = f"{observe_ms:>9.3f} {predict_ms:>9.3f} {both_ms:>9.3f} {train_ms:>11.3f} {megabytes:>7.1f}"
        print(f"{name:>10} {row}")


def _cost(name: str, workers: int, sensors: int, seed: int, options: dict) -> tuple[float, float, float, float]:
    rng = np.random.default_rng(seed)
    predictor = make(name, workers, sensors, **options)
    spent_s = np.zeros((120, 3))
    for number in range(120):
        speed, readings = rng.uniform(50, 100, workers), rng.uniform(0, 4, (workers, sensors))
        marks = [time.perf_counter()]
        predictor.observe(speed, readings)
        marks.append(time.perf_counter())
        predictor.predict(readings)
        marks.append(time.perf_counter())
        left = iter((True, False))
        predictor.train(lambda left=left: next(left, False))
        marks.append(time.perf_counter())
        spent_s[number] = np.diff(marks)
    observe_ms, predict_ms, train_ms = 1e3 * np.median(spent_s[60:], axis=0)
    return observe_ms, predict_ms, train_ms, len(pickle.dumps(predictor)) / 1e6


def _print_ablation(recording: Recording, limit: int | None, seed: int) -> None:
    print(f"{recording.name}   [RMSE, % of mean speed, second half; narx: mean of seeds {seed} and {seed + 1}]")
    for label, error in _ablation(recording, limit, seed):
        print(f"{label:>44} {error:>7.2f}", flush=True)


def _ablation(recording: Recording, limit: int | None, seed: int) -> Iterator[tuple[str, float]]:
    world = World(recording, limit)
    yield "last", _error(world, "last")
    yield "ema, best alpha in hindsight", min(_error(world, f"ema:alpha={a}") for a in (0.1, 0.2, 0.3, 0.5, 0.7, 0.9))
    if recording.sensor_names:
        for label, sensors in _sensor_sets(recording):
            cut = World(sensors, limit)
            yield f"narx, sensors {label}", _narx(cut, seed)
            yield f"arx, sensors {label}", _error(cut, "arx")
    yield "narx, residual", _narx(world, seed)
    yield "narx, absolute", _narx(world, seed, "residual=false")
    for horizon in (1, 4, 8):
        for name in ("last", "ema:alpha=0.5", "arx"):
            yield f"{name}, horizon {horizon}", _error(world, name, horizon)
        yield f"narx, horizon {horizon}", _narx(world, seed, horizon=horizon)
    yield "hindsight, nearest moments", _hindsight(world)


def _sensor_sets(recording: Recording) -> Iterator[tuple[str, Recording]]:
    readings = recording.at_start
    lagged = np.full_like(readings, np.nan)
    lagged[1:] = readings[:-1]
    yield "none", replace(recording, sensor_names=(), at_start=readings[:, :, :0])
    yield "lagged", replace(recording, at_start=lagged)
    yield "at the barrier", recording


def _narx(world: World, seed: int, options: str = "", horizon: int = 1) -> float:
    specs = [f"narx:seed={seed + extra}" + (f",{options}" if options else "") for extra in (0, 1)]
    return float(np.mean([_error(world, spec, horizon) for spec in specs]))


def _error(world: World, spec: str, horizon: int = 1) -> float:
    return forecast(world, spec, horizon=horizon, train_steps=TRAIN_STEPS).rmse_percent(world, 0.5)


def _hindsight(world: World) -> float:
    """Each forecast is the mean speed after the most similar other moments, of any worker and time."""
    speed, sensors = world.speed, world.sent
    level = np.log(speed / np.quantile(speed, 0.98, axis=0))
    choices = [list(range(sensors.shape[2])), *([index] for index in range(sensors.shape[2]))]
    return min(_nearest_error(world, level, sensors[:, :, choice]) for choice in choices)


def _nearest_error(world: World, level: np.ndarray, sensors: np.ndarray) -> float:
    readings = np.sign(sensors) * np.log1p(np.abs(sensors))
    rows = np.concatenate((level[1:-1, :, None], level[:-2, :, None], readings[1:-1]), axis=2)
    rows = np.nan_to_num(rows.reshape(-1, rows.shape[2]))
    rows = rows / (rows.std(0) + 1e-9)
    truth = level[2:].ravel()
    scale = np.quantile(world.speed, 0.98, axis=0)
    begin = (world.iterations // 2 - 2) * world.workers
    found = _nearest_means(rows, np.exp(truth), begin)
    tested = np.tile(scale, len(truth) // len(scale))[begin:]
    wrong = (found - np.exp(truth)[begin:]) * tested
    mean = float((np.exp(truth)[begin:] * tested).mean())
    return float(100 * np.sqrt((wrong**2).mean(1)).min() / mean)


def _nearest_means(rows: np.ndarray, truth: np.ndarray, begin: int) -> np.ndarray:
    """(counts, tested rows): mean truth of so many nearest other rows."""
    parts = []
    for start in range(begin, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        away = (block**2).sum(1)[:, None] + (rows**2).sum(1)[None] - 2 * block @ rows.T
        away[np.arange(len(block)), start + np.arange(len(block))] = np.inf
        order = np.argpartition(away, max(NEAREST), axis=1)[:, : max(NEAREST)]
        order = np.take_along_axis(order, np.take_along_axis(away, order, 1).argsort(1), 1)
        parts.append(np.stack([truth[order[:, :count]].mean(1) for count in NEAREST]))
    return np.concatenate(parts, axis=1)


if __name__ == "__main__":
    main()
