"""cb-DyBW against full participation: iteration time, iterations and time to the target, accuracy, p_j(k).

Task times are independent draws (the paper's model; --times says from what), or one of run.py's loads. Both sides
have the same data, first parameters, step sizes and graph (a ring, two neighbours on either side). Means over seeds.
Samples a worker stay the same however many there are, as in the paper. --scale-rate lets eta0 grow with the square
root of the workers over the first --workers, as its linear speed-up supposes.
"""

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.schemes import data, loads, report
from bench.schemes.dybw import Dybw
from bench.schemes.speeds import Speeds
from bench.schemes.world import Outcome, Setup, simulate

TIMES = ("exponential", "pareto", "straggler", *loads.LOADS)


def main() -> None:
    """Run, show, write."""
    options = _options()
    samples = data.load(options.data)
    found: dict[str, dict[str, dict[str, Any]]] = {}
    counts: dict[str, Any] = {}
    cases = [(times, workers) for times in options.times for workers in options.workers]
    for times, workers in track(cases, console=Console(stderr=True)):
        both = {name: [_run(options, times, workers, seed, samples, name == "full") for seed in options.seeds]
                for name in ("dynamic", "full")}  # fmt: skip
        found.setdefault(times, {})[str(workers)] = _compare(both["dynamic"], both["full"])
        if workers == options.plot_workers:
            counts[f"{times}, {workers} workers"] = np.array(_consensus(both["dynamic"][0]).participants)
    _show(options, found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.plot:
        report.plot_participation(options.plot, counts)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", nargs="+", choices=TIMES, default=["exponential", "pareto", "straggler", "seconds"])
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--samples", type=int, default=32, help="a worker and iteration")
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--rate", type=float, default=0.5, help="eta0")
    parser.add_argument("--scale-rate", action="store_true")
    parser.add_argument("--decay", type=float, default=0.9995, help="delta")
    parser.add_argument("--target", type=float, default=0.15, help="training loss")
    parser.add_argument("--late", choices=["drop", "keep"], default="drop", help="what becomes of late work")
    parser.add_argument("--shards", choices=["iid", "labels"], default="iid")
    parser.add_argument("--data", type=Path, help="folder with IDX or CIFAR-10 binary files; default: digits")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot-workers", type=int, default=8)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="p_j(k)")
    return parser.parse_args()


def _run(options: argparse.Namespace, times: str, workers: int, seed: int, samples: data.Data, full: bool) -> Outcome:
    rate = options.rate * (np.sqrt(workers / options.workers[0]) if options.scale_rate else 1.0)
    setup = Setup(
        workers=workers, global_batch=options.samples * workers, iterations=options.iterations, rate=rate,
        decay=options.decay, target_loss=options.target, shards=options.shards, seed=seed, score_every=1,
    )  # fmt: skip
    speeds: Speeds = (loads.LOADS[times](workers, setup.worker_rate, seed) if times in loads.LOADS
                      else loads.drawn(times, workers, setup.worker_rate, seed))  # fmt: skip
    return simulate(partial(Dybw, full=full, late=options.late), setup, speeds, samples)


def _compare(dynamic: list[Outcome], full: list[Outcome]) -> dict[str, Any]:
    ratio = _ratio(_mean(dynamic, "iteration_ms"), _mean(full, "iteration_ms"), digits=4)
    faster = _ratio(_mean(full, "time_to_target_s"), _mean(dynamic, "time_to_target_s"))
    return {
        "iteration_ms": _mean(dynamic, "iteration_ms"), "iteration_ms_full": _mean(full, "iteration_ms"),
        "less_percent": None if ratio is None else round(100 * (1 - ratio), 1),
        "iterations_to_target": _iterations_to(dynamic), "iterations_to_target_full": _iterations_to(full),
        "time_to_target_s": _mean(dynamic, "time_to_target_s"),
        "time_to_target_s_full": _mean(full, "time_to_target_s"), "faster_to_target": faster,
        "accuracy": _mean(dynamic, "final_accuracy"), "accuracy_full": _mean(full, "final_accuracy"),
        "wasted_share": _mean(dynamic, "wasted_share"),
        "mean_p": _mean_p(dynamic), "mean_p_full": _mean_p(full),
    }  # fmt: skip


def _mean(runs: list[Outcome], key: str) -> float | None:
    values = [getattr(run, key) for run in runs]
    return None if None in values else round(float(np.mean(values)), 4)


def _ratio(above: float | None, below: float | None, digits: int = 2) -> float | None:
    return None if above is None or not below else round(above / below, digits)


def _consensus(run: Outcome) -> Dybw:
    if not isinstance(run.scheme, Dybw):
        raise TypeError(f"wanted a run of Dybw, got one of {type(run.scheme).__name__}")
    return run.scheme


def _mean_p(runs: list[Outcome]) -> float:
    return round(float(np.mean([np.mean(_consensus(run).participants) for run in runs])), 2)


def _iterations_to(runs: list[Outcome]) -> float | None:
    """Updates until the target; scores are taken every batch applied, so this is exact to one batch."""
    counts = []
    for run in runs:
        reached = run.time_to_target_s
        if reached is None:
            return None
        counts.append(sum(1 for end_s in _consensus(run).ended_s if end_s <= reached))
    return round(float(np.mean(counts)), 1)


def _show(options: argparse.Namespace, found: dict[str, dict[str, dict[str, Any]]]) -> None:
    console = Console(width=150)
    console.print(f"# python bench/schemes/consensus.py {' '.join(sys.argv[1:])}", highlight=False)
    title = (
        f"cb-DyBW (late work: {options.late}) / full participation, {options.samples} samples a worker, "
        f"{options.shards} shards, eta {options.rate} * {options.decay}^k, seeds {options.seeds}"
    )
    table = Table(title=title, title_justify="left")
    for name in ("times", "workers", "iteration [ms]", "less [%]", f"iterations to {options.target:g}",
                 "time to it [s]", "faster", "accuracy [%]", "wasted [%]", "mean p_j"):  # fmt: skip
        table.add_column(name, justify="left" if name == "times" else "right")
    for times, rows in found.items():
        for workers, row in rows.items():
            table.add_row(
                times, workers, _pair(row, "iteration_ms", 0), f"{row['less_percent']:.1f}",
                _pair(row, "iterations_to_target", 0), _pair(row, "time_to_target_s", 1),
                "-" if row["faster_to_target"] is None else f"{row['faster_to_target']:.2f}x",
                _pair(row, "accuracy", 2, 100), f"{100 * row['wasted_share']:.0f}", _pair(row, "mean_p", 1),
            )  # fmt: skip
    console.print(table)


def _pair(row: dict[str, Any], key: str, digits: int, factor: float = 1.0) -> str:
    return " / ".join(
        "-" if value is None else f"{factor * value:.{digits}f}" for value in (row[key], row[f"{key}_full"])
    )


if __name__ == "__main__":
    main()
