"""Do no harm, with real workers: bursts shorter than an iteration, then a steady 2:1 neighbour.

Two ranks, a core each, train two copies of a model in alternating blocks of one run: equal sizes with the stock
loader, and LB-BSP. `over_equal`: the median over pairs of blocks of LB-BSP's iteration time over that of equal sizes,
with a bootstrap interval, while bursts come and go on both cores; `messages` and `plan_changes` are how many there were
an iteration meanwhile. `efficiency`: with a busy process on the second core,
after 250 iterations of LB-BSP, the iteration time of the best of some fixed splits with the stock loader over LB-BSP's,
in alternating blocks, as in `lbbsp demo`; `of_work_rates`: that of the ideal by both ranks' measured work rates, which
knows no communication, over LB-BSP's.
`lookahead 8`: two loader workers that fetch four whole batches each ahead. With `--runs` figures are medians over runs,
each with bursts of its own, in every second one of which LB-BSP's copy is made first; `runs`: the `over_equal` of each.
"""

import argparse
from time import perf_counter
from typing import Any

import neighbours
import numpy as np
import torch
import workers
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from lbbsp.adapters.pytorch import balance

BLOCK = 10
SETTLE = 250
"""Iterations of LB-BSP under the steady neighbour in which to find the new sizes."""
ROUND, ROUNDS = 20, 3
"""Iterations of each way in turn, and turns."""
SPLITS = (0.56, 0.60, 0.64, 0.68, 0.72)
"""The first rank's share of the global batch."""
SAMPLES = 1_000_000


class Lane:
    """One copy of the model with its loader."""

    def __init__(self, batch: int, lookahead: int, balanced: bool) -> None:
        self.ddp = workers.model()
        data = workers.Images(SAMPLES)
        extra: dict[str, Any] = {"num_workers": 2, "prefetch_factor": lookahead // 2} if lookahead else {}
        loader: Any = DataLoader(data, batch, sampler=DistributedSampler(data), **extra)
        if balanced:
            self.ddp, loader = balance(self.ddp, loader, chunks="off")
        self.loader = loader
        self._optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.01)
        self._batches = iter(loader)

    def block(self, iterations: int = BLOCK) -> float:
        """Seconds an iteration."""
        torch.distributed.barrier()
        began_s = perf_counter()
        for _ in range(iterations):
            workers.train(self.ddp, next(self._batches), self._optimizer)
        return (perf_counter() - began_s) / iterations


def worker(arguments: argparse.Namespace) -> None:
    """One rank; the first one starts and ends the neighbours."""
    rank = workers.join()
    made = {way: Lane(arguments.batch, arguments.lookahead, way) for way in (arguments.swapped, not arguments.swapped)}
    equal, lbbsp = made[False], made[True]
    spy = workers.Spy(lbbsp.loader.balancer)
    for lane in (equal, lbbsp, equal, lbbsp):
        lane.block()
    around = Around(rank, arguments)
    follower, messages = lbbsp.loader.balancer.follower, workers.Calls(lbbsp.loader.balancer.control, "send")
    changes = follower.totals.plan_changes
    pairs = [(equal.block(), lbbsp.block()) for _ in range(arguments.pairs)]
    unrest = {"messages": messages.count / arguments.pairs / BLOCK}
    unrest["plan_changes"] = (follower.totals.plan_changes - changes) / arguments.pairs / BLOCK
    around.settle_down()
    lbbsp.block(SETTLE)
    before = len(spy.reports)
    steady_s = _steady(arguments, {"lbbsp": lbbsp, "equal": equal})
    around.stop()
    reports = [(report.samples, report.own_time_s) for report in spy.reports[before:]]
    everything = workers.gather(reports)
    if rank == 0:
        found = {"pairs": pairs, "steady_s": steady_s, "reports": everything, "unrest": unrest}
        workers.write(arguments.out, found)
    lbbsp.loader.balancer.close()
    workers.leave()


def _steady(arguments: argparse.Namespace, lanes: dict[str, Lane]) -> dict[str, float]:
    """Seconds an iteration of each way, fixed splits included, in alternating blocks."""
    rank, whole = torch.distributed.get_rank(), 2 * arguments.batch
    for share in SPLITS:
        first = round(share * whole)
        lanes[f"{first}"] = Lane((first, whole - first)[rank], arguments.lookahead, balanced=False)
        lanes[f"{first}"].block(5)
    turns = [{name: lane.block(ROUND) for name, lane in lanes.items()} for _ in range(ROUNDS)]
    return {name: float(np.mean([turn[name] for turn in turns])) for name in lanes}


class Around:
    """What else runs on the cores: bursts at first, then one busy process on the second core."""

    def __init__(self, rank: int, arguments: argparse.Namespace) -> None:
        self._mine = rank == 0
        self._busy: Any = None
        self._bursts: list[neighbours.Neighbours] = []
        if self._mine:
            rng = np.random.default_rng(arguments.seed)
            plans = [neighbours.bursts(rng, 600.0, None) for _ in range(2)]
            self._bursts = [neighbours.Neighbours(plan, core) for core, plan in enumerate(plans)]
            for each in self._bursts:
                each.start()

    def settle_down(self) -> None:
        """Steady from now on."""
        for each in self._bursts:
            each.stop()
        self._busy = workers.busy(1) if self._mine else None

    def stop(self) -> None:
        """Nothing else from now on."""
        if self._busy is not None:
            self._busy.kill()
            self._busy.wait()


def figures(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of all runs."""
    ratios = [np.array([lbbsp / equal for equal, lbbsp in run["pairs"]]) for run in runs]
    return workers.over_runs("over_equal", ratios, [_of_run(run) for run in runs])


def _of_run(run: dict[str, Any]) -> dict[str, float]:
    own = np.array(run["reports"])[:, -ROUND * ROUNDS :]
    steady_s = run["steady_s"]
    fixed_s = min(time_s for name, time_s in steady_s.items() if name.isdigit())
    samples, own_s = own[..., 0], own[..., 1]
    ideal_s = (samples.sum(axis=0) / (samples / own_s).sum(axis=0)).mean()
    return {
        "over_equal_mean": float(np.mean([lbbsp for _, lbbsp in run["pairs"]]) / np.mean([e for e, _ in run["pairs"]])),
        "efficiency": fixed_s / steady_s["lbbsp"],
        "of_work_rates": float(ideal_s / steady_s["lbbsp"]),
        "speedup": steady_s["equal"] / steady_s["lbbsp"],
        "iteration_ms": 1e3 * float(np.median([equal for equal, _ in run["pairs"]])),
        **run["unrest"],
    }


def main() -> None:
    """Run both lookaheads and print one table."""
    parser = workers.options(__doc__)
    parser.add_argument("--pairs", type=int, default=40, help="pairs of blocks of 10 iterations under bursts")
    parser.add_argument("--batch", type=int, default=128, help="samples a rank")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lookaheads", type=int, nargs="*", default=[0, 8])
    parser.add_argument("--runs", type=int, default=1, help="of each lookahead, in processes of their own")
    parser.add_argument("--lookahead", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--swapped", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments)
        return
    found = {}
    for lookahead in arguments.lookaheads:
        settings = ["--pairs", str(arguments.pairs), "--batch", str(arguments.batch), "--lookahead", str(lookahead)]
        own = [["--seed", str(arguments.seed + run), *["--swapped"] * (run % 2)] for run in range(arguments.runs)]
        runs = [workers.found(__file__, 2, [*settings, *each], 600) for each in own]
        found[f"lookahead {lookahead}"] = figures(runs)
    for name, row in found.items():
        print(name, "  ".join(f"{key} {value}" for key, value in row.items()))
    workers.keep(arguments.json, found)


if __name__ == "__main__":
    main()
