"""Claims against plans, in real training: 2 ranks, a core each, iterations of about 250 ms, neighbours on their cores.

Schemes take turns in one run, block by block; within a repeat each meets the same neighbours. `slowdown` is the mean
iteration time over that of an ideal plan, from the work rate of all ranks, pooled over schemes; `speedup_vs_equal`
the ratio of mean iteration times. Loads: *steady*: rank 1's core is shared with one busy process; *seconds*:
two neighbours of rank 1 that come and go for seconds; *bursts*: two neighbours a core, 0.15 s busy, 0.4 s away.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import workers
from neighbours import STAYS_NEIGHBOURS, Intervals, Neighbours, stays
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from lbbsp.adapters.pytorch import balance

LOADS = ("steady", "seconds", "bursts")
SCHEMES: dict[str, dict[str, Any]] = {
    "equal": {"mode": "observe"},
    "lbbsp": {},
    "claims": {"claims": True},
    "auto": {"claims": "auto"},
}
BURST_S, GAP_S, BURST_NEIGHBOURS = 0.15, 0.4, 2
ADAPT, DROPPED = 24, 3
"""Iterations before the first block of a load, and at the start of each block, that do not count."""
START_S = 0.7
"""Until neighbours have started."""


def neighbours(load: str, seed: int, length_s: float, cores: list[int]) -> list[Neighbours]:
    """Those of one block: the same for each scheme of a repeat."""
    rng = np.random.default_rng(seed)
    if load == "steady":
        return [Neighbours([[(0.0, length_s)]], cores[1])]
    if load == "seconds":
        plans = stays(rng, length_s + 60.0, None)
        shift = rng.uniform(0, 60.0)
        assert len(plans) == STAYS_NEIGHBOURS
        return [Neighbours([[(a - shift, b - shift) for a, b in plan if b > shift] for plan in plans], cores[1])]
    return [Neighbours([_bursts(rng, length_s) for _ in range(BURST_NEIGHBOURS)], core) for core in cores]


def _bursts(rng: np.random.Generator, length_s: float) -> Intervals:
    now_s, found = 0.0, []
    while now_s < length_s:
        now_s += rng.exponential(GAP_S)
        stay_s = rng.exponential(BURST_S)
        found.append((now_s, now_s + stay_s))
        now_s += stay_s
    return found


class Job:
    """One scheme's model, loader and optimizer on this rank."""

    def __init__(self, name: str, batch: int) -> None:
        data = workers.Images(1000 * batch * dist.get_world_size())
        loader: Any = DataLoader(data, batch, sampler=DistributedSampler(data, shuffle=False))
        self.two_levels = "claims" in SCHEMES[name]
        self.ddp, self.loader = balance(workers.model(), loader, **SCHEMES[name])
        self.spy = workers.Spy(self.loader.balancer)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.01)
        self._iterations = iter(self.loader)

    def run(self, iterations: int) -> dict[str, Any]:
        """Train; the iteration times, and this rank's samples and own time after the dropped ones."""
        before = len(self.spy.reports)
        marks = [time.perf_counter()]
        for _ in range(iterations):
            self._step(next(self._iterations))
            marks.append(time.perf_counter())
        reports = self.spy.reports[before + DROPPED :]
        return {
            "times_s": np.diff(marks)[DROPPED:].tolist(),
            "samples": sum(report.samples for report in reports),
            "claimed": sum(report.claimed for report in reports),
            "own_s": sum(report.own_time_s for report in reports),
        }

    def _step(self, item: Any) -> None:
        for images, labels in item if self.two_levels else (item,):
            torch.nn.functional.cross_entropy(self.ddp(images), labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def worker(arguments: argparse.Namespace) -> None:
    """One rank: a job of each scheme, in turn."""
    rank = workers.join()
    cores = workers.gather(min(os.sched_getaffinity(0)))
    jobs = {name: Job(name, arguments.batch) for name in SCHEMES}
    blocks: list[dict[str, Any]] = []
    for load in arguments.loads:
        for repeat in range(-1, arguments.repeats):
            for name, job in _turned(jobs, repeat):
                if repeat < 0 and name == "equal":
                    continue
                count = ADAPT if repeat < 0 else arguments.iterations
                seed = 1000 * LOADS.index(load) + repeat + 1
                mine = _block(job, load, seed, count, cores, rank)
                blocks.append({"load": load, "repeat": repeat, "scheme": name, "ranks": workers.gather(mine)})
    if rank == 0:
        workers.write(arguments.out, blocks)
    for job in jobs.values():
        job.loader.balancer.close()
    workers.leave()


def _turned(jobs: dict[str, Job], repeat: int) -> list[tuple[str, Job]]:
    """Another scheme begins each repeat."""
    items = list(jobs.items())
    shift = repeat % len(items)
    return items[shift:] + items[:shift]


def _block(job: Job, load: str, seed: int, iterations: int, cores: list[int], rank: int) -> dict[str, Any]:
    around = neighbours(load, seed, 60.0, cores) if rank == 0 else []
    for one in around:
        one.start()
    time.sleep(START_S)
    dist.barrier()
    try:
        return job.run(iterations)
    finally:
        for one in around:
            one.stop()


def summary(blocks: list[dict[str, Any]], samples: int) -> dict[str, Any]:
    """By load and scheme; global batches of so many samples."""
    found: dict[str, Any] = {}
    for load in dict.fromkeys(block["load"] for block in blocks):
        mine = [block for block in blocks if block["load"] == load and block["repeat"] >= 0]
        rates = [
            sum(block["ranks"][rank]["samples"] for block in mine)
            / sum(block["ranks"][rank]["own_s"] for block in mine)
            for rank in range(len(mine[0]["ranks"]))
        ]
        ideal_s = samples / sum(rates)
        means = {
            name: [statistics.mean(block["ranks"][0]["times_s"]) for block in mine if block["scheme"] == name]
            for name in SCHEMES
        }
        found[load] = {"ideal_ms": 1e3 * ideal_s}
        for name in SCHEMES:
            mean_s = statistics.mean(means[name])
            claimed = [sum(rank["claimed"] for rank in block["ranks"]) for block in mine if block["scheme"] == name]
            worked = [sum(rank["samples"] for rank in block["ranks"]) for block in mine if block["scheme"] == name]
            found[load][name] = {
                "iteration_ms": 1e3 * mean_s,
                "slowdown": mean_s / ideal_s,
                "speedup_vs_equal": statistics.mean(means["equal"]) / mean_s,
                "speedup_vs_lbbsp": statistics.mean(means["lbbsp"]) / mean_s,
                "by_repeat_ms": [1e3 * one for one in means[name]],
                "claimed_share": sum(claimed) / max(1, sum(worked)),
            }
    return found


def table(found: dict[str, Any]) -> str:
    """As Markdown."""
    lines = ["| load | ideal [ms] | scheme | iteration [ms] | slowdown | against equal | against lbbsp | claimed |"]
    lines.append("|---|---:|---|---:|---:|---:|---:|---:|")
    for load, schemes in found.items():
        for name in SCHEMES:
            one = schemes[name]
            lines.append(
                f"| {load} | {schemes['ideal_ms']:.0f} | {name} | {one['iteration_ms']:.0f} | {one['slowdown']:.3f} | "
                f"{one['speedup_vs_equal']:.3f} | {one['speedup_vs_lbbsp']:.3f} | {one['claimed_share']:.0%} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Launch, sum up, print."""
    arguments = _options()
    if arguments.worker:
        worker(arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "out.json")
        passed = [f"--batch={arguments.batch}", f"--iterations={arguments.iterations}"]
        passed += [f"--repeats={arguments.repeats}", f"--out={out}", "--loads", *arguments.loads]
        workers.launch(__file__, 2, passed, timeout_s=3600)
        blocks = json.loads(Path(out).read_text())
    found = summary(blocks, 2 * arguments.batch)
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        print(f"# python bench/claims.py {' '.join(sys.argv[1:])}\n{table(found)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=20, help="of a block")
    parser.add_argument("--batch", type=int, default=704, help="samples a rank at equal sizes")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
