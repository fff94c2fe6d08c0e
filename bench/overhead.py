"""What the adapter costs: equal ranks, balance() on against off, in alternating blocks of one run.

One copy of the model is trained, with our hooks on it and our loader or without: off on on off on, and so forth.
Epochs last 200 iterations, and the first of them is not counted: a job's sizes, and the machine, have to come to rest.
`ratio` is the median over block pairs of the mean iteration time with over that without, with a bootstrap interval;
`our_us_per_iteration` is our own code on a rank, most of any rank, by the processor time of the training thread inside
it and of rank 0's relay: waits, for the plan or for a core that others take, are apart. `wall_us` is the time that
passes in our code in the training thread, waits for the plan alone apart: all-reduce runs on the same core meanwhile.
The manager's CPU is a process of its own and given apart. `messages` is how many of rank 0's there were an iteration,
1 where a job never rests; `plan_changes` are all that a rank saw. `helpers_ms_per_s` is the processor time of all other
threads that balance() began on a rank, most of any rank: they run in the blocks without it too, so that `ratio` does
not show them. With `--runs` figures are medians over runs; `runs` is each one's ratio.
"""

import argparse
import os
import statistics
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil
import torch
import workers
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from lbbsp.adapters.pytorch import balance

BLOCK = 20
EPOCH_BLOCKS = 10
WARM_UP_BLOCKS = EPOCH_BLOCKS


class Meter:
    """Adds up the time inside some functions of ours, and what the relay's thread takes."""

    def __init__(self, relay: threading.Thread | None) -> None:
        self._relay = relay
        self.reset()

    def reset(self) -> None:
        """Count from now on."""
        self.wall_s = self.cpu_s = 0.0
        self._relay_from_s = self._relay_s()

    def _relay_s(self) -> float:
        if self._relay is None or self._relay.ident is None:
            return 0.0
        return time.clock_gettime(time.pthread_getcpuclockid(self._relay.ident))

    def figures_us(self, iterations: int) -> dict[str, float]:
        """An iteration."""
        relay_s = self._relay_s() - self._relay_from_s
        seconds = {"our_us": self.cpu_s + relay_s, "relay_us": relay_s, "wall_us": self.wall_s}
        return {name: 1e6 * float(each_s) / iterations for name, each_s in seconds.items()}

    def wrap(self, owner: Any, name: str, wait: bool = False) -> None:
        """Count what this attribute takes; where it is a `wait` inside other counted code take it off."""
        inner, sign = getattr(owner, name), -1.0 if wait else 1.0

        def timed(*arguments: Any, **named: Any) -> Any:
            wall_s, cpu_s = time.perf_counter(), time.thread_time()
            try:
                return inner(*arguments, **named)
            finally:
                self.cpu_s += sign * (time.thread_time() - cpu_s)
                self.wall_s += sign * (time.perf_counter() - wall_s)

        setattr(owner, name, timed)


class Helpers:
    """Threads that begin while it is entered, but for Python's own: ZeroMQ's and those of gloo groups."""

    def __enter__(self) -> Self:
        self._before = _threads()
        return self

    def __exit__(self, *_: object) -> None:
        ours = {str(thread.native_id) for thread in threading.enumerate()}
        self._begun = _threads() - self._before - ours

    def cpu_s(self) -> float:
        """What they have taken."""
        return 1e-9 * sum(int(Path(f"/proc/self/task/{one}/schedstat").read_text().split()[0]) for one in self._begun)


def _threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def worker(arguments: argparse.Namespace) -> None:
    """One rank: one model, balanced in every second block."""
    rank = workers.join()
    data = workers.Images(EPOCH_BLOCKS * BLOCK * arguments.batch * torch.distributed.get_world_size())
    ddp = workers.model()
    plain_loader: DataLoader = DataLoader(data, arguments.batch, sampler=DistributedSampler(data))
    with Helpers() as helpers:
        ddp, loader = balance(ddp, DataLoader(data, arguments.batch, sampler=DistributedSampler(data)))
    hooks = workers.Hooks(loader.balancer)
    follower = loader.balancer.follower
    meter = Meter(follower.channel if isinstance(follower.channel, threading.Thread) else None)
    meter.wrap(follower.channel, "vector", wait=True)
    for name in ("draw", "drawn", "reduced", "reduction"):
        meter.wrap(follower, name)
    gradients = loader.balancer._gradients
    gradients._ready, gradients._reduced = loader.balancer._ready, follower.reduced
    messages = workers.Calls(loader.balancer.control, "send")
    manager_s = helpers_s = began_s = 0.0
    times: dict[str, list[float]] = {"off": [], "on": []}
    lanes = [("off", _batches(plain_loader)), ("on", _batches(loader))]
    for block in range(arguments.blocks + WARM_UP_BLOCKS):
        if block == WARM_UP_BLOCKS:
            meter.reset()
            messages.count = 0
            manager_s = -_manager_s(loader)
            helpers_s, began_s = -helpers.cpu_s(), -time.perf_counter()
        for name, batches in lanes:
            hooks.put(name == "on")
            times[name].append(_block(ddp, batches))
        lanes.reverse()
    ours_us = meter.figures_us(arguments.blocks * BLOCK)
    ours_us["helpers_ms_per_s"] = 1e3 * (helpers_s + helpers.cpu_s()) / (began_s + time.perf_counter())
    manager_s += _manager_s(loader)
    everything = workers.gather((times, ours_us))
    if rank == 0:
        iterations = arguments.blocks * BLOCK
        found = {
            "ranks": everything,
            "manager_us": 1e6 * manager_s / iterations,
            "messages": messages.count / iterations,
        }
        workers.write(arguments.out, found | {"plan_changes": follower.totals.plan_changes})
    loader.balancer.close()
    workers.leave()


def _manager_s(loader: Any) -> float:
    """CPU time of the embedded manager so far."""
    child = loader.balancer.session._child
    return sum(psutil.Process(child.process.pid).cpu_times()[:2]) if child else 0.0


def _batches(source: Any) -> Iterator[Any]:
    """One epoch after the other."""
    while True:
        yield from source


def _block(ddp: Any, batches: Iterator[Any]) -> float:
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    torch.distributed.barrier()
    began_s = time.perf_counter()
    for batch in islice(batches, BLOCK):
        workers.train(ddp, batch, optimizer)
    return (time.perf_counter() - began_s) / BLOCK


def figures(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of all runs."""
    times = [run["ranks"][0][0] for run in runs]
    ratios = [np.array(time_s["on"][WARM_UP_BLOCKS:]) / np.array(time_s["off"][WARM_UP_BLOCKS:]) for time_s in times]
    return workers.over_runs("ratio", ratios, [_of_run(run) for run in runs])


def _of_run(run: dict[str, Any]) -> dict[str, float]:
    return {
        **{name: max(ours[name] for _, ours in run["ranks"]) for name in run["ranks"][0][1]},
        **{name: run[name] for name in ("manager_us", "messages", "plan_changes")},
        "iteration_ms": 1e3 * statistics.median(run["ranks"][0][0]["off"][WARM_UP_BLOCKS:]),
    }


def main() -> None:
    """Run 2 and 4 ranks and print one table."""
    parser = workers.options(__doc__)
    parser.add_argument("--blocks", type=int, default=25, help="pairs of blocks of 20 iterations")
    parser.add_argument("--batch", type=int, default=96, help="samples a rank")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--runs", type=int, default=1, help="of each, in processes of their own")
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments)
        return
    found = {}
    for ranks in arguments.ranks:
        settings = ["--blocks", str(arguments.blocks), "--batch", str(arguments.batch * 2 // ranks)]
        found[str(ranks)] = figures([workers.found(__file__, ranks, settings, 600) for _ in range(arguments.runs)])
    for ranks, row in found.items():
        print(f"{ranks} ranks", "  ".join(f"{key} {value}" for key, value in row.items()))
    result = {"ratio": found[str(arguments.ranks[0])]["ratio"], "detail": found}
    result["our_us_per_iteration"] = {ranks: row["our_us"] for ranks, row in found.items()}
    workers.keep(arguments.json, result)


if __name__ == "__main__":
    main()
