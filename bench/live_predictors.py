"""Predictors live, paired: real workers, neighbours that come and go, one copy of the model for each predictor.

Two ranks, a core each. In each round every copy, balanced by a manager of its own with its predictor, trains for as
long under the same seeded neighbours (generator `stays` of bench/neighbours.py, on both cores) as the others; who
begins moves on by one each round. A ratio is the median over rounds of mean iteration times, with a bootstrap
interval; below 1 is faster. `equal` trains with equal sizes. Rounds of `--warm-up` count apart, as `..._at_first`:
`auto` lets its models take part in the first 300 iterations of a job, and later while they are worth it. With `--runs`
ratios are medians over launches, in each of which the copies are made in another order: where a copy lies in memory
makes it up to 2 % slower for all of a launch. Keep the machine otherwise idle.
"""

import argparse
import os
import sys
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import workers
from neighbours import GENERATORS, Neighbours
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from lbbsp.adapters.pytorch import balance

EQUAL = "equal"
LANES = ("ema", "last", "auto", EQUAL)
LOOK_EVERY = 4
SAMPLES = 100_000


class Lane:
    """A copy of the model and what feeds it."""

    def __init__(self, predictor: str, batch: int) -> None:
        data = workers.Images(SAMPLES)
        loader: Any = DataLoader(data, batch, sampler=DistributedSampler(data))
        self.ddp = workers.model()
        self.balancer = None
        if predictor != EQUAL:
            self.ddp, loader = balance(self.ddp, loader, predictor=predictor)
            self.balancer = loader.balancer
        self.loader = loader
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.01)

    def train(self, seconds: float) -> list[float]:
        """Times of iterations, for so long by rank 0's clock."""
        dist.barrier()
        stamps = [time.perf_counter()]
        end_s = stamps[0] + seconds
        for number, batch in enumerate(self.loader, 1):
            workers.train(self.ddp, batch, self.optimizer)
            stamps.append(time.perf_counter())
            if number % LOOK_EVERY == 0 and _over(stamps[-1] > end_s):
                break
        return np.diff(stamps).tolist()


def _over(mine: bool) -> bool:
    """What rank 0 says."""
    told = torch.tensor(float(mine))
    dist.broadcast(told, src=0)
    return bool(told)


def worker(arguments: argparse.Namespace) -> None:
    """One rank."""
    rank = workers.join()
    core = min(os.sched_getaffinity(0))
    lanes = {name: Lane(name, arguments.batch) for name in arguments.lanes}
    rounds: list[dict[str, float]] = []
    for number in range(-arguments.warm_up, arguments.rounds):
        rounds.append({})
        shift = number % len(lanes)
        for name in [*lanes, *lanes][shift : shift + len(lanes)]:
            random = np.random.default_rng([arguments.seed, number + arguments.warm_up, rank])
            plans = GENERATORS["stays"](random, arguments.seconds, None)
            beside = Neighbours(plans, core)
            beside.start()
            try:
                rounds[-1][name] = float(np.mean(lanes[name].train(arguments.seconds)))
            finally:
                beside.stop()
    if rank == 0:
        workers.write(arguments.out, rounds)
    for lane in lanes.values():
        if lane.balancer is not None:
            lane.balancer.close()
    workers.leave()


Rounds = list[dict[str, float]]
"""Of one launch: mean iteration time by lane, seconds."""


def figures(runs: list[Rounds], warm_up: int) -> dict[str, Any]:
    """Mean iteration time of each lane, and auto's over each other one's; also in the rounds of the warm-up."""
    lanes = sorted(runs[0][0])
    counted = [one for rounds in runs for one in rounds[warm_up:]]
    found: dict[str, Any] = {f"{name}_ms": 1e3 * float(np.mean([one[name] for one in counted])) for name in lanes}
    for name in lanes:
        if name != "auto" and "auto" in lanes:
            ratios = [_ratios(rounds[warm_up:], name) for rounds in runs]
            found[f"auto_over_{name}"] = workers.over_runs("median", ratios, [{"rounds": len(one)} for one in ratios])
            if warm_up:
                first = np.concatenate([_ratios(rounds[:warm_up], name) for rounds in runs])
                found[f"auto_over_{name}_at_first"] = float(np.median(first))
    return found


def _ratios(rounds: Rounds, name: str) -> np.ndarray:
    return np.array([one["auto"] / one[name] for one in rounds])


def main() -> None:
    """Run one job and print one table."""
    parser = workers.options(__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--runs", type=int, default=1, help="launches, each of all rounds")
    parser.add_argument("--warm-up", type=int, default=1, help="rounds before those that count")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each lane in each round")
    parser.add_argument("--batch", type=int, default=96, help="samples a rank")
    parser.add_argument("--lanes", nargs="+", default=list(LANES), help="predictors, or `equal`")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments)
        return
    limit_s = 60 + 2 * (arguments.rounds + arguments.warm_up) * len(arguments.lanes) * (arguments.seconds + 1)
    lanes = arguments.lanes
    shifts = [number % len(lanes) for number in range(arguments.runs)]
    orders = [["--lanes", *lanes[shift:], *lanes[:shift]] for shift in shifts]
    runs = [workers.found(__file__, 2, [*sys.argv[1:], *order], limit_s) for order in orders]
    result = figures(runs, arguments.warm_up)
    print(f"# python bench/live_predictors.py {' '.join(sys.argv[1:])}   (2 ranks, seed {arguments.seed})")
    for name, value in result.items():
        shown = f"{value:.3f}" if isinstance(value, float) else "  ".join(f"{key} {one}" for key, one in value.items())
        print(f"{name:>24} {shown}")
    workers.keep(arguments.json, result)


if __name__ == "__main__":
    main()
