"""A manager killed in a running job, then started again: the longest iteration, and when sizes adapt again.

Two real ranks, a core each, a busy process on rank 1's core. The manager (a process of its own, by LBBSP_MANAGER) is
killed with SIGKILL at a third of the run and started again at two thirds; the busy process ends at the restart.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import workers
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from lbbsp.adapters.pytorch import balance

BATCH = 128
WARM_UP = 10


def worker(arguments: argparse.Namespace) -> None:
    """One rank; says where it is by files."""
    rank = workers.join()
    ddp = workers.model()
    data = workers.Images(2 * BATCH * arguments.iterations)
    loader: Any = DataLoader(data, BATCH, sampler=DistributedSampler(data))
    ddp, loader = balance(ddp, loader)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    rows = []
    began_s = time.perf_counter()
    for number, batch in enumerate(loader):
        workers.train(ddp, batch, optimizer)
        now_s = time.perf_counter()
        rows.append((1e3 * (now_s - began_s), len(batch[0])))
        began_s = now_s
        if rank == 0:
            Path(f"{arguments.out}.at").write_text(str(number))
    if rank == 0:
        workers.write(arguments.out, rows)
    loader.balancer.close()
    workers.leave()


def manager(port: int) -> "subprocess.Popen[bytes]":
    """`lbbsp manager` on this port."""
    return subprocess.Popen([sys.executable, "-m", "lbbsp", "manager", "--bind", f"tcp://127.0.0.1:{port}"])


def run(iterations: int) -> list[tuple[float, int]]:
    """Milliseconds of each iteration and rank 0's samples in it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ["LBBSP_MANAGER"] = f"tcp://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/out"
        first, busy = manager(port), workers.busy(sorted(os.sched_getaffinity(0))[1])
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__]
        job = subprocess.Popen([*launch, "--worker", "--iterations", str(iterations), "--out", out])
        _wait(f"{out}.at", iterations // 3, job)
        first.send_signal(signal.SIGKILL)
        _wait(f"{out}.at", 2 * iterations // 3, job)
        second = manager(port)
        busy.kill()
        job.wait()
        second.terminate()
        second.wait()
        rows: list[tuple[float, int]] = json.loads(Path(out).read_text())
        return rows


def _wait(path: str, number: int, job: "subprocess.Popen[bytes]") -> None:
    while job.poll() is None:
        text = Path(path).read_text() if Path(path).exists() else ""
        if text and int(text) >= number:
            return
        time.sleep(0.01)
    sys.exit("the job ended early")


def main() -> None:
    """Run it once and print the figures."""
    parser = workers.options(__doc__)
    parser.add_argument("--iterations", type=int, default=240)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments)
        return
    rows = run(arguments.iterations)
    times_ms, sizes = [ms for ms, _ in rows[WARM_UP:]], [samples for _, samples in rows]
    third = arguments.iterations // 3
    result = {
        "median_ms": statistics.median(times_ms),
        "longest_over_median": max(times_ms) / statistics.median(times_ms),
        "rank_0_samples_before_kill": sizes[third - 1],
        "rank_0_samples_while_away": sizes[2 * third - 1],
        "rank_0_samples_at_end": sizes[-1],
    }
    for name, value in result.items():
        print(name, value)
    workers.keep(arguments.json, result)


if __name__ == "__main__":
    main()
