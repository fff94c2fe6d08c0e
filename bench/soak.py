"""200,000 iterations with jobs coming and going, at one table with its journal: memory flat, journal bounded.

In process, with the real table of jobs, keeper and journal, and no sockets. Jobs begin, restart as new incarnations
with other world sizes, say bye, or vanish without a word; time passes by itself, so that what is forgotten after a time
is. Memory is the process's own (Pss); it is flat where the second half of the run adds nothing to the first.
"""

import argparse
import gc
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from lbbsp.protocol import Bye, Hello, Plan, Report, encode
from lbbsp.service.job import sizer_maker
from lbbsp.service.journal import Journal
from lbbsp.service.keeper import Keeper
from lbbsp.service.table import JobTable
from lbbsp.service.watch import Watch

AT_ONCE = 8
ITERATION_S = 0.25
FORGET_AFTER_S = 600.0
MEAN_LIFE = 150
"""Iterations until a job restarts, ends or vanishes, on average."""
SAMPLES = 40
"""Looks at memory and journal."""


class Job:
    """One job's ranks, all in one."""

    def __init__(self, manager: "Manager", number: int) -> None:
        self._manager, self._draw = manager, manager.draw
        self.name = f"job {number}"
        self._starts = 0
        self.begin()

    def begin(self) -> None:
        """A new incarnation, perhaps of another world size."""
        self._starts += 1
        self._ranks = self._draw.choice((2, 3, 4, 8))
        self._speeds = [self._draw.uniform(500.0, 4000.0) for _ in range(self._ranks)]
        self._ids = {"job": self.name, "incarnation": f"{self._starts}"}
        self._sizes = [64] * self._ranks
        self._iteration = 0
        for rank in range(self._ranks):
            self._say(
                Hello(
                    **self._ids, rank=rank, world_size=self._ranks, global_batch=64 * self._ranks, min_samples=0,
                    max_samples=64 * self._ranks, machine=f"m{rank}", sensors=("load",),
                )
            )  # fmt: skip

    def step(self) -> None:
        """One iteration of all ranks."""
        for rank, (size, speed) in enumerate(zip(self._sizes, self._speeds, strict=True)):
            own_s = (size + 1) / speed * self._draw.uniform(0.9, 1.1)
            report = Report(
                **self._ids, rank=rank, iteration=self._iteration, samples=size, own_time_s=own_s, sensors=(0.5,)
            )
            plan = self._say(report)
        self._iteration += 1
        if plan is None or sum(plan.sizes) != 64 * self._ranks:
            raise SystemExit(f"{self.name}: no sound plan at iteration {self._iteration}: {plan}")
        self._sizes = list(plan.sizes)

    def bye(self) -> None:
        """All ranks end."""
        for rank in range(self._ranks):
            self._say(Bye(**self._ids, rank=rank))

    def _say(self, message: Any) -> Plan | None:
        replies = self._manager.take(b"%s %d" % (self.name.encode(), message.rank), encode(message))
        return next((reply for _, reply in replies if isinstance(reply, Plan)), None)


class Manager:
    """A daemon without sockets."""

    def __init__(self, folder: Path, seed: int, predictor: str) -> None:
        self.draw = random.Random(seed)
        self.now_s = 0.0
        self.journal = Journal(folder / "journal")
        self.table = JobTable(sizer_maker(predictor))
        self.table.forget_after_s = FORGET_AFTER_S
        self.keeper = Keeper(self.table, self.journal, lambda: self.now_s, lambda: 1e9 + self.now_s)
        self._watch = Watch(self.table)

    def take(self, peer: bytes, frame: bytes) -> list[Any]:
        """One frame."""
        return self.table.handle(peer, frame, self.now_s)

    def pass_time(self) -> None:
        """What the daemon does after each batch of frames."""
        self.now_s += ITERATION_S / AT_ONCE
        self.table.catch_up()
        self.keeper.look(self.now_s)
        self._watch.look(self.now_s)


def run(iterations: int, seed: int, folder: Path, predictor: str = "ema") -> dict[str, Any]:
    """The soak; figures."""
    manager = Manager(folder, seed, predictor)
    draw, jobs, begun = manager.draw, [], 0
    counts = {"restarted": 0, "ended": 0, "vanished": 0}
    looks: list[tuple[float, int, int, int]] = []
    began_s = time.perf_counter()
    for number in range(iterations):
        while len(jobs) < AT_ONCE:
            jobs.append(Job(manager, begun))
            begun += 1
        job = jobs[number % AT_ONCE]
        job.step()
        manager.pass_time()
        if draw.random() < 1.0 / MEAN_LIFE:
            fate = draw.choice(("restarted", "ended", "vanished"))
            counts[fate] += 1
            if fate == "restarted":
                job.begin()
            else:
                if fate == "ended":
                    job.bye()
                jobs.remove(job)
        if (number + 1) % max(1, iterations // SAMPLES) == 0:
            looks.append(_look(manager))
    took_s = time.perf_counter() - began_s
    manager.keeper.close()
    return _figures(iterations, begun, counts, looks, manager, took_s)


def _look(manager: Manager) -> tuple[float, int, int, int]:
    gc.collect()
    return memory_mib(), manager.journal.size_bytes, len(manager.table.jobs), len(manager.table.past.jobs)


def memory_mib() -> float:
    """Proportional set size of this process."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("no Pss in /proc/self/smaps_rollup")


def _figures(
    iterations: int, begun: int, counts: dict[str, int], looks: list[tuple[float, int, int, int]], manager: Manager,
    took_s: float,
) -> dict[str, Any]:  # fmt: skip
    memory, journal, jobs, past = (np.array(column, dtype=np.float64) for column in zip(*looks, strict=True))
    half = len(memory) // 2
    slope = float(np.polyfit(np.arange(half), memory[-half:], 1)[0]) * half if half > 1 else 0.0
    return {
        "iterations": iterations, "jobs_begun": begun, **counts,
        "memory_mib_first_half": float(memory[:half].max()), "memory_mib_second_half": float(memory[-half:].max()),
        "memory_mib_grown_in_second_half": slope, "journal_kib_most": float(journal.max()) / 1024,
        "journal_kib_second_half_over_first": float(journal[-half:].max() / journal[:half].max()),
        "journal_compactions": manager.journal.compactions, "snapshots": manager.keeper.snapshots,
        "jobs_most": int(jobs.max()), "past_jobs_most": int(past.max()), "took_s": took_s,
        "us_an_iteration": 1e6 * took_s / iterations,
    }  # fmt: skip


def main() -> None:
    """Run it and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=200_000)
    parser.add_argument("--predictor", default="ema")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = run(arguments.iterations, arguments.seed, Path(folder), arguments.predictor)
    for name, value in figures.items():
        print(f"{name:36} {value:.2f}" if isinstance(value, float) else f"{name:36} {value}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
