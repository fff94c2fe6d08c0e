"""All schemes on the same work: iteration time, samples wasted, time to a target loss, accuracy.

A virtual clock, real SGD on real data. Loads are generated (steady, seconds, bursts) or recorded. Figures are means
over the seeds; a target that a seed misses makes that mean "-" (null in JSON). "ms a batch" is the time for each
global batch of samples *applied*, which is the same work for every scheme; an iteration of backup workers applies less.
"""

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from rich.console import Console
from rich.progress import Progress

from bench.schemes import data, loads, report
from bench.schemes.network import Wire
from bench.schemes.registry import SCHEMES
from bench.schemes.speeds import Speeds
from bench.schemes.world import Setup, simulate
from lbbsp.errors import ConfigError

Row = dict[str, Any]
_MEANS = ("iteration_ms", "wasted_share", "time_to_target_s", "final_accuracy", "batch_ms", "waiting_share",
          "samples_to_target", "iterations")  # fmt: skip


def main() -> None:
    """Run, show, write."""
    options = _options()
    try:
        rows, curves = _run(options)
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from error
    console = Console(width=140)
    console.print(f"# python bench/schemes/run.py {' '.join(sys.argv[1:])}", highlight=False)
    setup = _setup(options, options.seeds[0])
    for load, schemes in rows.items():
        console.print(report.table(load, schemes, setup, options.seeds))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if options.plot:
        report.plot(options.plot, curves, setup)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--global-batch", type=int, help="samples; default 32 a worker up to 16 workers, 8 above")
    parser.add_argument("--iterations", type=int, default=300, help="global batches that each scheme applies")
    parser.add_argument("--loads", nargs="+", choices=sorted(loads.LOADS), default=list(loads.LOADS))
    parser.add_argument("--recording", type=Path, help="CSV (worker,iteration,samples,time_s; .gz too) instead")
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES), metavar="SCHEME",
                        help=f"of {', '.join(SCHEMES)}")  # fmt: skip
    parser.add_argument("--shards", choices=["iid", "labels"], default="iid",
                        help="iid: one shared permutation; labels: to each worker a part sorted by label")  # fmt: skip
    parser.add_argument("--data", type=Path, help="folder with IDX or CIFAR-10 binary files; default: digits")
    parser.add_argument("--rate", type=float, default=0.5, help="step size at the start (eta0)")
    parser.add_argument("--decay", type=float, default=0.9995, help="of the step size, per global batch (delta)")
    parser.add_argument("--target", type=float, default=0.15, help="training loss to reach")
    parser.add_argument("--network", choices=["server", "ring"], default="server")
    parser.add_argument("--latency-ms", type=float, default=0.2)
    parser.add_argument("--gigabits", type=float, default=10.0, help="of each link, per second")
    parser.add_argument("--megabytes", type=float, default=1.0, help="of the model on the wire")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="loss over time, one panel a load")
    return parser.parse_args()


def _setup(options: argparse.Namespace, seed: int) -> Setup:
    wire = Wire(options.latency_ms / 1e3, options.gigabits * 1e9 / 8, options.megabytes * 1e6, options.network)
    batch = options.global_batch or options.workers * (32 if options.workers <= 16 else 8)
    return Setup(
        workers=options.workers, global_batch=batch, iterations=options.iterations, rate=options.rate,
        decay=options.decay, target_loss=options.target, shards=options.shards, wire=wire, seed=seed,
    )  # fmt: skip


def _speeds(options: argparse.Namespace, load: str, setup: Setup) -> Speeds:
    if options.recording:
        return loads.recording(options.recording, setup.workers, setup.fixed_samples + setup.chunk_samples, setup.seed)
    return loads.LOADS[load](setup.workers, setup.worker_rate, setup.seed)


@lru_cache(maxsize=1)
def _data(folder: Path | None) -> data.Data:
    return data.load(folder)


def _one(options: argparse.Namespace, load: str, scheme: str, seed: int) -> tuple[Row, report.Curve]:
    setup = _setup(options, seed)
    shown = simulate(SCHEMES[scheme], setup, _speeds(options, load, setup), _data(options.data))
    return {key: getattr(shown, key) for key in _MEANS}, shown.curve


def _run(options: argparse.Namespace) -> tuple[dict[str, dict[str, Row]], dict[str, dict[str, report.Curve]]]:
    names = [options.recording.name] if options.recording else options.loads
    jobs = [(load, scheme, seed) for load in names for scheme in options.schemes for seed in options.seeds]
    found: dict[tuple[str, str, int], tuple[Row, report.Curve]] = {}
    with Progress(console=Console(stderr=True)) as progress, ProcessPoolExecutor(options.jobs) as pool:
        bar = progress.add_task("runs", total=len(jobs))
        running = {pool.submit(_one, options, *job): job for job in jobs}
        try:
            for future in as_completed(running):
                found[running[future]] = future.result()
                progress.update(bar, advance=1, description=" ".join(map(str, running[future])))
        except ConfigError:
            pool.shutdown(cancel_futures=True)
            raise
    rows = {load: {scheme: _mean([found[load, scheme, seed][0] for seed in options.seeds])
                   for scheme in options.schemes} for load in names}  # fmt: skip
    curves = {load: {scheme: found[load, scheme, options.seeds[0]][1] for scheme in options.schemes} for load in names}
    return rows, curves


def _mean(rows: list[Row]) -> Row:
    """Over seeds; None where one of them has none."""
    return {key: None if any(row[key] is None for row in rows) else round(float(np.mean([row[key] for row in rows])), 4)
            for key in _MEANS}  # fmt: skip


if __name__ == "__main__":
    main()
