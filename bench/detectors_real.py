"""Real training ranks, one of them slowed by an injected cause, for bench/detectors.py.

Two ranks, a core each. What they report is kept and put through all detectors afterwards, so that each is judged on
the same reports. A stopped process (SIGSTOP) is watched through a manager of its own, by the clock. Times in seconds.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import workers
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from lbbsp.adapters.pytorch import balance
from lbbsp.core.causes import Cause
from lbbsp.core.detectors import DETECTORS
from lbbsp.core.manager import BatchSizeManager, JobSpec
from lbbsp.core.sizing import Bounds
from lbbsp.core.stragglers import Stragglers
from lbbsp.protocol import Look
from lbbsp.top.asking import Asker

CASES = {
    "neighbour": Cause.NEIGHBOUR,
    "loader": Cause.INPUT,
    "sleep": Cause.BLOCKED,
    "drift": Cause.CLOCKS,
    "data": Cause.DATA,
}
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


def worker(options: argparse.Namespace) -> None:
    """One rank."""
    rank = workers.join()
    data = Slowed(BATCH * 2 * ITERATIONS)
    ddp, loader = workers.model(), DataLoader(data, BATCH, sampler=DistributedSampler(data))
    dear = [1.0]
    mode = "observe" if options.sizes == "equal" else "balance"
    ddp, loader = balance(ddp, loader, mode=mode, job="real", cost=lambda batch: dear[0] * len(batch[0]))
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
            dear[0] = 2.0
            _burn(base_s)
        if slow and options.case == "drift":
            _burn(base_s * min(1.0, (k - ONSET) / 30))
        if options.case == "stopped" and rank == 0 and k == ONSET:
            workers.write(options.out + ".onset", k)
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
    names = ("rank", "iteration", "samples", "own_time_s", "draws", "wait_s", "input_s", "settled", "sensors", "cost")
    return {name: getattr(report, name) for name in names}


def judge(run: dict[str, Any]) -> tuple[dict[str, np.ndarray], np.ndarray, str]:
    """Flags by detector, iterations seen, and the cause named last."""
    ranks, sensors = len(run["reports"]), tuple(run["sensors"])
    manager = BatchSizeManager(
        JobSpec(Bounds(BATCH * ranks, np.ones(ranks), np.full(ranks, BATCH * ranks)), sensors=sensors)
    )
    watcher, default = Stragglers(ranks, sensors, tuple(DETECTORS)), Stragglers(ranks, sensors)
    flags: dict[str, list[np.ndarray]] = {name: [] for name in DETECTORS}
    iterations, cause = [], ""
    for rows in zip(*run["reports"], strict=False):
        for row in rows:
            readings = row["sensors"] or (float("nan"),) * len(sensors)
            readings = [float("nan") if value is None else value for value in readings]
            report = {name: row[name] for name in ("rank", "iteration", "samples", "own_time_s", "wait_s", "settled")}
            manager.report(**report, sensors=readings)
        costs = np.array([row["cost"] / row["samples"] for row in rows])
        seen = manager.sight(np.array([row["input_s"] for row in rows]), costs)
        watcher.see(seen)
        default.see(seen)
        cause = default.flagged[SLOW].diagnosis.cause.value if SLOW in default.flagged else cause
        iterations.append(seen.iteration)
        for name in DETECTORS:
            flags[name].append(watcher.flags(name).copy())
    return {name: np.array(rows) for name, rows in flags.items()}, np.array(iterations), cause


def run(repeats: int) -> dict[str, Any]:
    """All causes with equal and LB-BSP sizes; figures as bench/detectors.py has them."""
    from detectors import Tally

    tallies = {name: Tally() for name in DETECTORS}
    causes: list[tuple[str, str, str]] = []
    for repeat in range(repeats):
        for case in CASES:
            for sizes in ("equal", "lbbsp"):
                with tempfile.TemporaryDirectory() as folder:
                    settings = ["--case", case, "--sizes", sizes, "--out", f"{folder}/out"]
                    workers.launch(__file__, 2, settings, 120)
                    flags, iterations, cause = judge(json.loads(Path(f"{folder}/out").read_text()))
                slow = np.ones((len(iterations), 2))
                ramp = np.clip((iterations - ONSET) / 30, 0, 1) if case == "drift" else iterations > ONSET
                slow[:, SLOW] += ramp
                for name in DETECTORS:
                    tallies[name].score(flags[name], slow)
                causes.append((case, sizes, cause))
                print(f"# {case}, {sizes}, {repeat}: {cause}", file=sys.stderr)
    silent_s = stopped()
    right = [cause == CASES[case] for case, _, cause in causes]
    return {
        "detectors": {name: tally.row() for name, tally in tallies.items()},
        "cause_accuracy": round(float(np.mean(right)), 3),
        "causes": [" ".join(row) for row in causes],
        "silent_s": silent_s,
    }


def stopped() -> float | None:
    """Seconds from SIGSTOP of one rank until the manager calls it silent; None: not in 20 s."""
    with tempfile.TemporaryDirectory() as folder, Path(f"{folder}/log").open("wb") as log:
        command = [sys.executable, "-m", "lbbsp", "manager", "--bind", "tcp://127.0.0.1:0"]
        manager = subprocess.Popen(command, stderr=log)
        while "listening on " not in Path(f"{folder}/log").read_text():
            time.sleep(0.05)
        address = Path(f"{folder}/log").read_text().rpartition("listening on ")[2].split("\n")[0]
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__]
        job = subprocess.Popen(
            [*launcher, "--worker", "--case", "stopped", "--sizes", "lbbsp", "--out", f"{folder}/out"],
            env=os.environ | {"LBBSP_MANAGER": address, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            return _stop_and_watch(job.pid, Path(f"{folder}/out.onset"), address)
        finally:
            job.terminate()
            job.wait()
            manager.terminate()
            manager.wait()


def _stop_and_watch(launcher: int, onset: Path, address: str) -> float | None:
    deadline_s = time.perf_counter() + 60
    while not onset.exists() and time.perf_counter() < deadline_s:
        time.sleep(0.05)
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    ranks = {_rank(int(child)): int(child) for child in children}
    os.kill(ranks[SLOW], signal.SIGSTOP)
    began_s = time.perf_counter()
    asker = Asker(address)
    try:
        while time.perf_counter() - began_s < 20:
            time.sleep(0.1)
            if any(flag.rank == SLOW and "silent" in flag.detectors for flag in asker.ask(Look(job="real")).flags):
                return round(time.perf_counter() - began_s, 1)
        return None
    finally:
        os.kill(ranks[SLOW], signal.SIGCONT)
        asker.close()


def _rank(process: int) -> int:
    variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    return int(next((one[5:] for one in variables if one.startswith(b"RANK=")), b"-1"))


def main() -> None:
    """A worker; bench/detectors.py --real starts the rest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", action="store_true")
    parser.add_argument("--case", choices=[*CASES, "stopped"])
    parser.add_argument("--sizes", choices=["equal", "lbbsp"])
    parser.add_argument("--out")
    worker(parser.parse_args())


if __name__ == "__main__":
    main()
