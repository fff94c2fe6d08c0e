"""The virtual clock against real processes: cb-DyBW and speculation on gloo ranks, beside the same job simulated.

Slowdowns are sleeps (see rank.py), since cores are few; who took part, whose result counted, gradients and messages
are real. Checked exactly, each run: every sample started was applied or wasted, none applied twice, and the models
are those that follow from who took part. The table compares mean iteration times.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from bench.schemes import data, loads, replay
from bench.schemes.launch import launch
from bench.schemes.network import Wire
from bench.schemes.registry import SCHEMES
from bench.schemes.world import Setup, simulate

REAL = ("cb-dybw", "speculation")
WIRE = Wire(latency_s=0.001, bytes_per_s=1e9, model_bytes=1e4, kind="ring")


def main() -> None:
    """Run, show, write."""
    options = _options()
    found: dict[str, dict[str, Any]] = {}
    for load in options.loads:
        for scheme in options.schemes:
            found.setdefault(load, {})[scheme] = compare(
                scheme, load, options.workers, options.iterations, options.seed
            )
    _show(found, options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemes", nargs="+", choices=REAL, default=list(REAL))
    parser.add_argument("--loads", nargs="+", choices=sorted(loads.LOADS), default=list(loads.LOADS))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def job(workers: int, iterations: int, seed: int) -> Setup:
    """The job, the same for both."""
    return Setup(workers=workers, global_batch=32 * workers, iterations=iterations, wire=WIRE, seed=seed)


def compare(scheme: str, load: str, workers: int, iterations: int, seed: int) -> dict[str, Any]:
    """One job on real ranks and on the virtual clock; raises RuntimeError where the account is wrong."""
    setup = job(workers, iterations, seed)
    accounts = launch(scheme, load, setup)
    replay.check(scheme, accounts, setup)
    real_ms = 1e3 * max(account["ended_s"][-1] for account in accounts) / iterations
    counted = setup if scheme == "speculation" else job(workers, 10 * iterations, seed)
    shown = simulate(SCHEMES[scheme], counted, loads.LOADS[load](workers, setup.worker_rate, seed), data.load(),
                     updates=iterations)  # fmt: skip
    return {
        "real_ms": round(real_ms, 1), "virtual_ms": round(shown.iteration_ms, 1),
        "off_percent": round(100 * (real_ms / shown.iteration_ms - 1), 1),
        "real_wasted_samples": sum(account["wasted"] for account in accounts),
        "virtual_wasted_samples": shown.world.ledger.wasted,
        "applied_samples": sum(len(numbers) for account in accounts for numbers in account["applied"]),
    }  # fmt: skip


def _show(found: dict[str, dict[str, Any]], options: argparse.Namespace) -> None:
    console = Console(width=140)
    console.print(f"# python bench/schemes/real.py {' '.join(sys.argv[1:])}", highlight=False)
    table = Table(title=f"{options.workers} gloo ranks (sleeps as slowdown) / virtual clock, {options.iterations} "
                        f"iterations, seed {options.seed}", title_justify="left")  # fmt: skip
    for name in ("load", "scheme", "real [ms]", "virtual [ms]", "off [%]", "wasted, real", "virtual", "applied"):
        table.add_column(name, justify="left" if name in ("load", "scheme") else "right")
    for load, rows in found.items():
        for scheme, row in rows.items():
            table.add_row(load, scheme, *(str(value) for value in row.values()))
    console.print(table)
    worst = max(abs(row["off_percent"]) for rows in found.values() for row in rows.values())
    console.print(f"largest difference: {worst:.1f} %")


if __name__ == "__main__":
    main()
