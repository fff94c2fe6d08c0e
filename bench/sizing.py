"""Exactness and time of sizing: largest gap to brute force on small random cases, milliseconds at many ranks.

The gap is relative, of the largest predicted time, over --cases cases of up to 6 ranks with random curves (flat
parts too), bounds and granularity. Times are medians over --repeats allocations of different curves.
"""

import argparse
import json
import statistics
import sys
import time

import numpy as np

from lbbsp.core.sizing import Bounds, Curves, allocate, fits

_KINDS = ("lines", "half at half speed", "flat, then lines", "all alike")


def main() -> None:
    """Measure, print one table, write JSON where asked."""
    options = _options()
    rng = np.random.default_rng(options.seed)
    gap = max(_gap(rng) for _ in range(options.cases))
    ms = {str(ranks): _milliseconds(rng, ranks, options.repeats) for ranks in options.ranks}
    print(f"# python bench/sizing.py {' '.join(sys.argv[1:])}   (seed {options.seed})")
    print(f"largest gap to brute force, {options.cases} cases: {gap:.3g} (relative)")
    print(f"{'ranks':>8} " + " ".join(f"{kind:>20}" for kind in _KINDS) + "   [ms, median]")
    for ranks, row in ms.items():
        print(f"{ranks:>8} " + " ".join(f"{value:>20.2f}" for value in row))
    if options.json:
        worst = {ranks: round(max(row), 3) for ranks, row in ms.items()}
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump({"max_gap": gap, "ms": worst}, out)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000, help="small cases against brute force")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1000, 10_000], help="ranks to time")
    parser.add_argument("--repeats", type=int, default=31, help="allocations per kind of curves")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="write max_gap and the worst kind's ms")
    return parser.parse_args()


def _curves(rng: np.random.Generator, ranks: int, kind: str) -> Curves:
    offset, slope, flat = rng.uniform(0, 0.05, ranks), rng.uniform(1e-3, 3e-3, ranks), np.zeros(ranks)
    if kind == "all alike":
        offset, slope = np.full(ranks, rng.uniform(0, 0.05)), np.full(ranks, rng.uniform(1e-3, 3e-3))
    if kind == "half at half speed":
        offset, slope = (
            np.full(ranks, 0.01),
            np.where(np.arange(ranks) % 2, 2.0, 1.0) * rng.uniform(1e-3, 3e-3),
        )
    if kind == "flat, then lines":
        offset, slope = rng.lognormal(-3, 1, ranks), rng.lognormal(-6, 1, ranks)
        flat = rng.uniform(0, 0.2, ranks)
    return Curves(flat, offset, slope)


def _milliseconds(rng: np.random.Generator, ranks: int, repeats: int) -> list[float]:
    bounds = Bounds(64 * ranks + 7, np.ones(ranks), np.full(ranks, 64 * ranks))
    row = []
    for kind in _KINDS:
        taken = []
        for _ in range(repeats):
            curves = _curves(rng, ranks, kind)
            start = time.perf_counter()
            sizes = allocate(curves, bounds)
            taken.append((time.perf_counter() - start) * 1e3)
            if problem := fits(sizes, bounds):
                raise SystemExit(f"broken plan: {problem}")
        row.append(statistics.median(taken))
    return row


def _gap(rng: np.random.Generator) -> float:
    """Relative gap between the plan's largest time and the least possible one, for one small case."""
    ranks, unit = int(rng.integers(1, 7)), int(rng.choice([1, 2, 8]))
    least = rng.integers(0, 5, ranks)
    most = least + rng.integers(1, 12, ranks)
    total = int(rng.integers(max(1, least.sum()), most.sum() + 1))
    curves = _curves(rng, ranks, str(rng.choice(_KINDS)))
    found = float(curves.time_s(allocate(curves, Bounds(total * unit, least * unit, most * unit, unit))).max())
    best = _brute_force(curves, least, most, total, unit)
    return (found - best) / best


def _brute_force(curves: Curves, least: np.ndarray, most: np.ndarray, total: int, unit: int) -> float:
    """Least possible largest time: every size of every rank tried, ranks one after the other."""
    best = np.full(total + 1, np.inf)
    best[0] = 0.0
    for rank in range(len(least)):
        mine, following = curves.take(np.array([rank])), np.full(total + 1, np.inf)
        for units in range(int(least[rank]), min(int(most[rank]), total) + 1):
            time_s = float(mine.time_s(np.array([units * unit]))[0])
            following[units:] = np.minimum(following[units:], np.maximum(best[: total + 1 - units], time_s))
        best = following
    return float(best[total])


if __name__ == "__main__":
    main()
