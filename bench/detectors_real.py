"""Real training ranks, one of them slowed by an injected cause, for bench/detectors.py.

Two ranks, a core each. What they report is kept and put through all detectors afterwards, so that each is judged on
the same reports. Times in seconds.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import workers
from detectors_stopped import stopped
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from lbbsp.adapters.pytorch import balance
from lbbsp.core.causes import Cause, Diagnosis
from lbbsp.core.detectors import DETECTORS
from lbbsp.core.manager import BatchSizeManager, JobSpec
from lbbsp.core.sizing import Bounds
from lbbsp.core.stragglers import Stragglers

CASES = {
    "neighbour": Cause.NEIGHBOUR,
    "loader": Cause.INPUT,
    "sleep": Cause.BLOCKED,
    "drift": Cause.CLOCKS,
    "data": Cause.DATA,
    "loop": Cause.LOOP,
}
TWICE = "twice"
"""One rank gets twice the work of the other, by its bounds: it is not slow."""
BATCH, ONSET, ITERATIONS, SLOW = 96, 80, 170, 1
WITHIN, LINGER = 10, 12


class Slowed(workers.Images):
    """Sleeps in the loader from the onset on."""

    extra_s = 0.0

    def __getitem__(self, index: int) -> Any:
        """One sample, late."""
        if self.extra_s:
            time.sleep(self.extra_s)
        return super().__getitem__(index)


class Drag(torch.autograd.Function):
    """Passes its input on, after some work in forward and twice as much in backward, as on a slower core."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, length_s: float) -> torch.Tensor:
        """A third of the work."""
        ctx.length_s = length_s
        _burn(length_s / 3)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Two thirds."""
        _burn(2 * ctx.length_s / 3)
        return gradient, None


class Dragged(torch.nn.Module):
    """A model whose passes take longer by what is set."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.length_s = 0.0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """As the inner one."""
        return Drag.apply(self.inner(images), self.length_s)


def worker(options: argparse.Namespace) -> None:
    """One rank."""
    rank = workers.join()
    data = Slowed(BATCH * 2 * ITERATIONS)
    dragged = Dragged(workers.model().module)
    ddp = torch.nn.parallel.DistributedDataParallel(dragged)
    loader = DataLoader(data, BATCH, sampler=DistributedSampler(data))
    dear = [1.0]
    mode = "observe" if options.sizes == "equal" else "balance"
    least = 2 * 2 * BATCH // 3 if options.case == TWICE and rank == SLOW else None
    ddp, loader = balance(
        ddp, loader, min_samples=least, mode=mode, job="real", cost=lambda batch: dear[0] * len(batch[0])
    )
    spy = workers.Spy(loader.balancer)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    neighbour, usual_s, last_s = None, [], time.perf_counter()
    for k, batch in enumerate(loader):
        slow = rank == SLOW and k >= ONSET
        base_s = float(np.median(usual_s[20:])) if len(usual_s) > 20 else 0.0
        if slow and options.case == "neighbour" and neighbour is None:
            neighbour = workers.busy(min(os.sched_getaffinity(0)))
        if slow and options.case == "loader":
            data.extra_s = base_s / BATCH
        if slow and options.case == "sleep":
            time.sleep(base_s)
        if slow and options.case == "data":
            dear[0], dragged.length_s = 2.0, base_s * len(batch[0]) / BATCH
        if slow and options.case == "drift":
            dragged.length_s = base_s * min(1.0, (k - ONSET) / 30) * len(batch[0]) / BATCH
        if slow and options.case == "loop":
            _burn(base_s)
        if options.case == "stopped" and rank == SLOW and k == ONSET:
            workers.write(options.out + ".onset", os.getpid())
            os.kill(os.getpid(), signal.SIGSTOP)
        workers.train(ddp, batch, optimizer)
        if k < ONSET:
            usual_s.append(time.perf_counter() - last_s)
        last_s = time.perf_counter()
    if neighbour is not None:
        neighbour.kill()
        neighbour.wait()
    reports = workers.gather([_row(report) for report in spy.reports])
    if rank == 0:
        workers.write(options.out, {"reports": reports, "sensors": loader.balancer.follower.hello.sensors})
    loader.balancer.close()
    workers.leave()


def _burn(length_s: float) -> None:
    """Compute on one's own core, as a slower clock would make one."""
    until_s = time.perf_counter() + length_s
    while time.perf_counter() < until_s:
        pass


def _row(report: Any) -> dict[str, Any]:
    names = (
        "rank", "iteration", "samples", "own_time_s", "draws", "wait_s", "input_s", "settled", "sensors", "cost",
        "phases_s",
    )  # fmt: skip
    return {name: getattr(report, name) for name in names}


@dataclass
class Judged:
    """What detectors made of one run."""

    flags: dict[str, np.ndarray]
    """(iterations, ranks)."""
    iterations: np.ndarray
    diagnosis: Diagnosis | None = None
    """The newest while the slow rank was flagged."""

    @property
    def cause(self) -> str:
        """In words; empty where the rank was not flagged."""
        return self.diagnosis.cause.value if self.diagnosis else ""

    def delays(self) -> dict[str, int | None]:
        """Iterations from the onset to each detector's flag."""
        after = self.iterations > ONSET
        found = {name: np.flatnonzero(flags[after, SLOW]) for name, flags in self.flags.items()}
        return {name: int(places[0]) if len(places) else None for name, places in found.items()}


def judge(run: dict[str, Any]) -> Judged:
    """Flags by detector, iterations seen, and the diagnosis that was made last."""
    ranks, sensors = len(run["reports"]), tuple(run["sensors"])
    manager = BatchSizeManager(
        JobSpec(Bounds(BATCH * ranks, np.ones(ranks), np.full(ranks, BATCH * ranks)), sensors=sensors)
    )
    watcher, default = Stragglers(ranks, sensors, tuple(DETECTORS)), Stragglers(ranks, sensors)
    flags: dict[str, list[np.ndarray]] = {name: [] for name in DETECTORS}
    iterations, diagnosis = [], None
    for rows in zip(*run["reports"], strict=False):
        for row in rows:
            readings = row["sensors"] or (float("nan"),) * len(sensors)
            readings = [float("nan") if value is None else value for value in readings]
            report = {name: row[name] for name in ("rank", "iteration", "samples", "own_time_s", "wait_s", "settled")}
            manager.report(**report, sensors=readings)
        costs = np.array([row["cost"] / row["samples"] for row in rows])
        phases = [row["phases_s"] for row in rows]
        told = np.array(phases) if all(phases) else None
        seen = manager.sight(np.array([row["input_s"] for row in rows]), costs, told)
        watcher.see(seen)
        default.see(seen)
        diagnosis = default.flagged[SLOW].diagnosis if SLOW in default.flagged else diagnosis
        iterations.append(seen.iteration)
        for name in DETECTORS:
            flags[name].append(watcher.flags(name).copy())
    return Judged({name: np.array(rows) for name, rows in flags.items()}, np.array(iterations), diagnosis)


def trained(case: str, sizes: str, keep: Path | None = None) -> Judged:
    """One real run, or the one that was kept."""
    kept = None if keep is None else keep / f"{case}.{sizes}.json"
    if kept is None or not kept.exists():
        with tempfile.TemporaryDirectory() as folder:
            out = Path(f"{folder}/out")
            try:
                workers.launch(__file__, 2, ["--case", case, "--sizes", sizes, "--out", str(out)], 120)
            except SystemExit as failed:
                if not out.exists():
                    raise
                print(f"# {case}, {sizes}: failed after its reports were written: {failed}", file=sys.stderr)
            text = out.read_text()
        if kept is None:
            return judge(json.loads(text))
        kept.write_text(text)
    return judge(json.loads(kept.read_text()))


def run(repeats: int) -> dict[str, Any]:
    """All causes with equal and LB-BSP sizes; figures as bench/detectors.py has them."""
    from detectors import Tally

    tallies = {name: Tally() for name in DETECTORS}
    causes: list[tuple[str, str, str]] = []
    twice = dict.fromkeys(DETECTORS, 0)
    for repeat in range(repeats):
        for case in CASES:
            for sizes in ("equal", "lbbsp"):
                found = trained(case, sizes)
                slow = slowness(case, found.iterations)
                for name in DETECTORS:
                    tallies[name].score(found.flags[name], slow)
                causes.append((case, sizes, found.cause))
                print(f"# {case}, {sizes}, {repeat}: {found.cause}, {found.delays()['history']}", file=sys.stderr)
        for name, flags in trained(TWICE, "lbbsp").flags.items():
            tallies[name].score(flags, np.ones(flags.shape))
            twice[name] += int(flags[:, SLOW].any())
    silent_s = stopped(__file__, SLOW)
    right = [cause == CASES[case] for case, _, cause in causes]
    return {
        "detectors": {name: tally.row() for name, tally in tallies.items()},
        "cause_accuracy": round(float(np.mean(right)), 3),
        "causes": [" ".join(row) for row in causes],
        "flagged_rank_given_twice": twice,
        "silent_s": silent_s,
    }


def slowness(case: str, iterations: np.ndarray) -> np.ndarray:
    """How slow the ranks are meant to be, (iterations, 2)."""
    slow = np.ones((len(iterations), 2))
    if case == TWICE:
        return slow
    slow[:, SLOW] += np.clip((iterations - ONSET) / 30, 0, 1) if case == "drift" else iterations > ONSET
    return slow


def main() -> None:
    """A worker, or single cases one by one; bench/detectors.py --real runs them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    parser.add_argument("--case", choices=[*CASES, TWICE, "stopped"], help="run this one, about 15 s")
    parser.add_argument("--sizes", choices=["equal", "lbbsp"], default="equal")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep its reports there, or judge those that are")
    options = parser.parse_args()
    if options.worker:
        worker(options)
    elif options.case == "stopped":
        print("silent after", stopped(__file__, SLOW), "s")
    else:
        from detectors import Tally

        found = trained(options.case, options.sizes, options.keep)
        tallies = {name: Tally() for name in DETECTORS}
        for name, tally in tallies.items():
            tally.score(found.flags[name], slowness(options.case, found.iterations))
        precision = {name: tally.row()["precision"] for name, tally in tallies.items()}
        print(f"{options.case}, {options.sizes}: wanted {CASES.get(options.case, 'no flag')}")
        print(f"delays {found.delays()}; precision {precision}")
        print(found.diagnosis)


if __name__ == "__main__":
    main()
