"""Real training workers for the benches: a job of ranks on pinned cores, a small model, and what its adapter saw.

Imported by the scripts beside it; each of them starts itself again under torch.distributed.run with `--worker`, which
writes what rank 0 found to `--out`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from lbbsp.demo.worker import LET_GO_S

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
STEADY_MALLOC = {"MALLOC_TRIM_THRESHOLD_": "1000000000", "MALLOC_MMAP_THRESHOLD_": "1000000000"}
"""glibc gives large blocks back each iteration otherwise, at a cost that jumps with the size of the batch."""

BUSY = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
while os.getppid() == int(sys.argv[2]):
    sum(range(10000))
"""


def options(description: str | None) -> argparse.ArgumentParser:
    """A bench's arguments: --json for its user, --worker and --out for its ranks."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    return parser


def found(script: str, ranks: int, arguments: list[str], timeout_s: float) -> Any:
    """What `script --worker --out` has written, run as so many ranks."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/out"
        launch(script, ranks, [*arguments, "--out", out], timeout_s)
        return json.loads(Path(out).read_text())


def launch(script: str, ranks: int, arguments: list[str], timeout_s: float) -> None:
    """Run `script --worker` as so many ranks; its output comes through only where it fails."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*command, script, "--worker", *arguments],
        timeout=timeout_s,
        capture_output=True,
        text=True,
        env=os.environ | ONE_THREAD | STEADY_MALLOC,
    )
    if done.returncode:
        sys.exit(done.stderr[-3000:])


def join(core_of: dict[int, int] | None = None) -> int:
    """Enter the job: gloo, one thread, a core of its own; the rank.

    Pinned before anything makes threads: Linux gives a session with threads on several cores (autogroup) more of each
    than its neighbours there.
    """
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core_of[rank] if core_of else cores[rank % len(cores)]})
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    return rank


def leave() -> None:
    """End the job together."""
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(LET_GO_S)


def busy(core: int) -> "subprocess.Popen[bytes]":
    """A process that uses what a core gives it; ends with this one. A session of its own: cores are shared by them."""
    return subprocess.Popen([sys.executable, "-c", BUSY, str(core), str(os.getpid())], start_new_session=True)


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Random images with some work a sample, as decoding and augmenting would be."""

    def __init__(self, samples: int, side: int = 16, work_s: float = 0.0, sleep_s: float = 0.0) -> None:
        self._data = np.random.default_rng(0).standard_normal((256, 1, side, side)).astype(np.float32)
        self._samples, self._work_s, self._sleep_s = samples, work_s, sleep_s

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        until_s = time.perf_counter() + self._work_s
        while time.perf_counter() < until_s:
            pass
        if self._sleep_s:
            time.sleep(self._sleep_s)
        return torch.from_numpy(self._data[index % 256]), index % 10


def model(side: int = 16, channels: int = 32) -> DistributedDataParallel:
    """A small CNN, without layers that couple samples."""
    return DistributedDataParallel(
        torch.nn.Sequential(
            torch.nn.Conv2d(1, channels, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(channels, channels, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(channels * side * side, 10),
        )
    )


def train(ddp: DistributedDataParallel, batch: Any, optimizer: torch.optim.Optimizer) -> None:
    """One step."""
    images, labels = batch
    torch.nn.functional.cross_entropy(ddp(images), labels).backward()
    optimizer.step()
    optimizer.zero_grad()


class Hooks:
    """Takes a balancer's hooks off its model, and puts back those that were on: one copy with and without, in turn.

    Of two equal copies one is up to 2 % slower for all of a launch, by where they lie in memory.
    """

    def __init__(self, balancer: Any) -> None:
        self._gradients = balancer._gradients
        self._on = True

    def put(self, on: bool) -> None:
        """On or off."""
        if on != self._on:
            self._on = on
            (self._back if on else self._off)()

    def _off(self) -> None:
        gradients = self._gradients
        for handle in (*gradients._handles, *gradients._hooks._handles.values()):
            handle.remove()
        gradients._handles.clear()

    def _back(self) -> None:
        gradients, hooks = self._gradients, self._gradients._hooks
        for model in gradients._models:
            gradients._hook_forward(model)
        for place in hooks._handles:
            node, hook = hooks._hooks[place]
            hooks._handles[place] = node.register_prehook(hook)


class Spy:
    """Stands before a rank's channel and keeps what it reports."""

    def __init__(self, balancer: Any) -> None:
        self.reports: list[Any] = []
        self._channel = balancer.follower.channel
        balancer.follower.channel = self

    def reduction(self, event: Any) -> None:
        """Keep the report."""
        if event.report is not None:
            self.reports.append(event.report)
        self._channel.reduction(event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


class Calls:
    """Counts the calls of a method."""

    def __init__(self, owner: Any, name: str) -> None:
        self.count = 0
        inner = getattr(owner, name)

        def counted(*arguments: Any) -> Any:
            self.count += 1
            return inner(*arguments)

        setattr(owner, name, counted)


def gather(value: Any) -> list[Any]:
    """Every rank's value."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def write(path: str, value: Any) -> None:
    """As JSON, at once: readers never see half of it."""
    Path(path + ".new").write_text(json.dumps(value))
    Path(path + ".new").rename(path)


def keep(path: str | None, figures: Any) -> None:
    """Write the figures where --json says."""
    if path:
        Path(path).write_text(json.dumps(figures, indent=2))


def interval_95(ratios: np.ndarray, seed: int = 0) -> list[float]:
    """Bootstrap interval of the median."""
    return interval_of_runs([ratios], seed)


def interval_of_runs(runs: list[np.ndarray], seed: int = 0) -> list[float]:
    """Bootstrap interval of the median of runs' medians: runs are drawn, and pairs within them.

    Where a run's copies of a model lie in memory makes one of two equal ones up to 2 % slower for all of the run.
    """
    random = np.random.default_rng(seed)
    drawn = [np.median(random.choice(ratios, (2000, len(ratios))), axis=1) for ratios in runs]
    which = random.integers(len(runs), size=(len(runs), 2000))
    medians = np.median(np.array(drawn)[which, np.arange(2000)], axis=0)
    return [float(np.quantile(medians, share)) for share in (0.025, 0.975)]


def over_runs(name: str, ratios: list[np.ndarray], rows: list[dict[str, float]]) -> dict[str, Any]:
    """One row of several runs' rows: medians, with each run's ratio and an interval of their median."""
    each = [float(np.median(of_run)) for of_run in ratios]
    found = {name: float(np.median(each)), "interval_95": interval_of_runs(ratios), "runs": each}
    return found | {key: float(np.median([row[key] for row in rows])) for key in rows[0]}
