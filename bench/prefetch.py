"""Loader workers and freshness: stock prefetch, chunks and no workers, with neighbours that stay for seconds.

Two real workers, a core each, num_workers=2, prefetch_factor=4; the same seeded neighbours in each run. `slowdown` is
the iteration time over the ideal from both ranks' measured work rates, `lag` the median by based_on_iteration,
`loader_wait_share` the part of an iteration spent waiting for the loader, `loader_wait_ms` the same in milliseconds.
Medians over the repeats.
"""

import argparse
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
import workers
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from lbbsp.adapters.pytorch import balance

MODES = ("stock", "chunks", "workers0")
BATCH = 128
WARM_UP = 30


def neighbours(core: int, seed: int, seconds: float, stop: threading.Event) -> None:
    """Busy processes on a core that come and stay for seconds (log-normal, median 2 s), with pauses alike."""
    random = np.random.default_rng([seed, core])
    end_s = time.perf_counter() + seconds
    process = None
    while time.perf_counter() < end_s and not stop.is_set():
        stop.wait(float(random.lognormal(np.log(2.0), 0.5)))
        if process is None:
            process = workers.busy(core)
        else:
            process.kill()
            process.wait()
            process = None
    if process is not None:
        process.kill()
        process.wait()


def worker(arguments: argparse.Namespace) -> None:
    """One rank of one run."""
    rank = workers.join()
    ddp = workers.model()
    data = workers.Images(100_000, work_s=arguments.sample_us * 1e-6)
    extra = {} if arguments.mode == "workers0" else {"num_workers": 2, "prefetch_factor": 4}
    loader: DataLoader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data), **extra)
    ddp, loader = balance(ddp, loader, chunks="off" if arguments.mode == "stock" else "on")
    spy = workers.Spy(loader.balancer)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    starts: list[float] = []
    stop_at_s = None
    for number, batch in enumerate(loader):
        if number == WARM_UP:
            stop_at_s = time.perf_counter() + arguments.seconds
            Path(f"{arguments.out}.ready").touch()
        starts.append(time.perf_counter())
        workers.train(ddp, batch, optimizer)
        done = torch.tensor(float(stop_at_s is not None and time.perf_counter() > stop_at_s))
        if number % 8 == 7 and float(loader.mean(done)) > 0:
            break
    reports = [(r.iteration, r.samples, r.own_time_s, r.input_s) for r in spy.reports]
    lags = list(loader.balancer.follower.totals.lags)[WARM_UP:]
    everything = workers.gather((starts, reports, lags))
    if rank == 0:
        workers.write(arguments.out, [[s[WARM_UP:], r[WARM_UP:], lag] for s, r, lag in everything])
    loader.balancer.close()
    workers.leave()


def figures(ranks: list) -> dict[str, float]:
    """Figures of one run."""
    (starts, _, lags), *_ = ranks
    iterations_s = np.diff(starts)
    ideal_s = []
    for own in zip(*(reports for _, reports, _ in ranks), strict=False):
        rate = sum(samples / own_time_s for _, samples, own_time_s, _ in own)
        ideal_s.append(sum(samples for _, samples, _, _ in own) / rate)
    waits_s = [np.mean([report[3] for report in reports]) for _, reports, _ in ranks]
    return {
        "lag": float(np.median(lags)),
        "lag_1_share": float(np.mean(np.array(lags) == 1)),
        "slowdown": float(iterations_s.sum() / np.sum(ideal_s[: len(iterations_s)])),
        "loader_wait_share": float(np.max(waits_s) / iterations_s.mean()),
        "loader_wait_ms": float(1e3 * np.max(waits_s)),
        "iteration_ms": float(1e3 * iterations_s.mean()),
    }


def run(mode: str, seed: int, arguments: argparse.Namespace) -> dict[str, float]:
    """One run of one mode with its neighbours."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/out.json"
        stop = threading.Event()
        threads = [
            threading.Thread(target=_when_ready, args=(out, core, seed, arguments.seconds, stop)) for core in (0, 1)
        ]
        for thread in threads:
            thread.start()
        settings = ["--mode", mode, "--seconds", str(arguments.seconds), "--out", out]
        try:
            workers.launch(__file__, 2, [*settings, "--sample-us", str(arguments.sample_us)], arguments.seconds + 90)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        return figures(json.loads(Path(out).read_text()))


def _when_ready(out: str, core: int, seed: int, seconds: float, stop: threading.Event) -> None:
    while not Path(f"{out}.ready").exists():
        if stop.wait(0.05):
            return
    neighbours(core, seed, seconds, stop)


def main() -> None:
    """Run all modes, interleaved, and print one table."""
    parser = workers.options(__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run, after the warm-up")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample-us", type=float, default=20.0, help="work to read one sample")
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments)
        return
    runs: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for repeat in range(arguments.repeats):
        for mode in MODES:
            runs[mode].append(run(mode, arguments.seed + repeat, arguments))
    result = {mode: {key: statistics.median(r[key] for r in runs[mode]) for key in runs[mode][0]} for mode in MODES}
    print(f"seed {arguments.seed}, {arguments.repeats} repeats of {arguments.seconds:g} s; slowdown over the ideal")
    for mode in MODES:
        print(f"{mode:9s}", "  ".join(f"{key} {value:.3f}" for key, value in result[mode].items()))
    workers.keep(arguments.json, result)


if __name__ == "__main__":
    main()
