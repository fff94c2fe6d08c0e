"""Rules on simulated accelerators: iterations to 2 % of the optimum, steady loss, time lost, speedup over equal sizes.

Curves are those of a public recording; knees and memory limits are drawn per seed and hidden (bench/devices.py).
All figures but the noise that rules see are noise-free times of the true curves; a batch that does not fit counts
twice its time. iterations_to_2pct: the first iteration within 2 % of the optimum from which on the next ten are too,
on average. leader-straggler is shown at the step and window, of the paper's grid, that get there soonest.
"""

import argparse
import json
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from devices import GLOBAL_BATCH, RECORDED, Cards, Memory, bounds, cards, heat, neighbour, steady

from lbbsp.core.rules import Adaptive, LeaderStraggler, Linear, Rule

STEPS, WINDOWS = (GLOBAL_BATCH // 64, GLOBAL_BATCH // 32, GLOBAL_BATCH // 16), (5, 10, 20)
NEAR = 1.02
MakeRule = Callable[[], Rule]


def main() -> None:
    """Measure, print tables, write JSON where asked."""
    options = _options()
    print(f"# python bench/gpu_rule.py {' '.join(sys.argv[1:])}   ({options.seeds} seeds, noise {options.noise:.0%})")
    table = {model: _rules(model, options) for model in RECORDED}
    _show(table)
    changes = {name: _changing(name, options) for name in ("neighbour", "heat")}
    for name, row in changes.items():
        print(f"{name:<10} adaptive loses {row['median_loss_pct']:.2f} % (worst seed {row['worst_loss_pct']:.2f} %)")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(table | {"changing": changes}, out, indent=1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--noise", type=float, default=0.05, help="sigma of the logarithm of a time")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    return parser.parse_args()


def play(cluster: Cards, rule: Rule, iterations: int) -> dict[str, np.ndarray]:
    """Times over the optimum, (iterations,), and how often each card ran out of memory."""
    memory = Memory(cluster.limit)
    sizes = memory.bounds().equal()
    over = np.empty(iterations)
    for k in range(iterations):
        times = cluster.curves(k).time_s(sizes)
        memory.run(sizes, cluster.limit)
        over[k] = (times * np.where(sizes > cluster.limit, 2.0, 1.0)).max() / cluster.best_s(k)
        sizes = rule.propose(sizes.astype(float), cluster.own_s(k, sizes), memory.bounds())
    return {"over": over, "crossed": memory.crossed}


def reached(over: np.ndarray) -> int:
    """First iteration near the optimum, with the next ten near it on average; the length where there is none."""
    means = np.convolve(over, np.ones(10) / 10, mode="valid")
    near = (over[: len(means)] < NEAR) & (means < NEAR)
    return int(np.argmax(near)) if near.any() else len(over)


def _figures(model: str, make: MakeRule, options: argparse.Namespace) -> dict[str, Any]:
    rows: dict[str, list[float]] = {name: [] for name in ("near", "steady", "lost", "speedup", "optimum", "crossed")}
    for seed in range(options.seeds):
        cluster = cards(model, seed, options.noise)
        equal_s = float(cluster.curves(0).time_s(bounds(np.full(4, GLOBAL_BATCH)).equal()).max())
        result = play(cluster, make(), options.iterations)
        over, best_s = result["over"], cluster.best_s(0)
        rows["near"].append(reached(over))
        rows["steady"].append(100 * (over[200:].mean() - 1))
        rows["lost"].append(100 * (over[:200].mean() - 1))
        rows["speedup"].append(equal_s / (best_s * over[200:].mean()))
        rows["optimum"].append(equal_s / best_s)
        rows["crossed"].append(float(result["crossed"].max()))
    return {
        "iterations_to_2pct": _both(rows["near"], max),
        "steady_loss_pct": _both(rows["steady"], max),
        "lost_first_200_pct": _both(rows["lost"], max),
        "speedup_vs_equal": _both(rows["speedup"], min),
        "optimum_speedup": _both(rows["optimum"], min),
        "most_out_of_memory_on_a_card": _both(rows["crossed"], max),
    }


def _both(values: list[float], worst: Callable[[list[float]], float]) -> dict[str, float]:
    return {"median": round(float(np.median(values)), 4), "worst": round(float(worst(values)), 4)}


def _rules(model: str, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    grid = []
    for step, window in product(STEPS, WINDOWS):
        made = _figures(model, lambda s=step, w=window: LeaderStraggler(4, GLOBAL_BATCH, s, w), options)
        grid.append(made | {"step_samples": step, "window": window})
    return {
        "adaptive": _figures(model, lambda: Adaptive(4, GLOBAL_BATCH), options),
        "leader-straggler": min(
            grid, key=lambda row: (row["iterations_to_2pct"]["median"], row["steady_loss_pct"]["median"])
        ),
        "linear": _figures(model, lambda: Linear(4, GLOBAL_BATCH), options),
    }


def _soonest(row: dict[str, Any]) -> tuple[float, float]:
    return row["iterations_to_2pct"]["median"], row["steady_loss_pct"]["median"]


def _changing(kind: str, options: argparse.Namespace) -> dict[str, float]:
    """Adaptive under a card that changes, over the time of the change: each model, each card in turn."""
    make, start, length = (neighbour, 60, 50) if kind == "neighbour" else (heat, 60, 500)
    losses = []
    for model, seed in product(RECORDED, range(options.seeds)):
        cluster = cards(model, seed, options.noise, make(seed % 4))
        over = play(cluster, Adaptive(4, GLOBAL_BATCH), start + length + 20)["over"]
        losses.append(100 * (over[start:].mean() - 1))
    worst = max(losses)
    return {
        "mean_loss_pct": round(float(np.mean(losses)), 3),
        "median_loss_pct": round(float(np.median(losses)), 3),
        "worst_loss_pct": round(float(worst), 3),
    }


def _show(table: dict[str, dict[str, dict[str, Any]]]) -> None:
    columns = ("iterations_to_2pct", "steady_loss_pct", "lost_first_200_pct", "speedup_vs_equal", "optimum_speedup")
    print(f"{'model':<16} {'rule':<17} " + " ".join(f"{name:>20}" for name in columns) + "   [median / worst]")
    for model, rules in table.items():
        for rule, row in rules.items():
            cells = " ".join(f"{row[name]['median']:>11.4g} /{row[name]['worst']:>7.4g}" for name in columns)
            print(f"{model:<16} {rule:<17} {cells}  oom {row['most_out_of_memory_on_a_card']['worst']:.0f}")


__all__ = ["play", "reached", "steady"]

if __name__ == "__main__":
    main()
