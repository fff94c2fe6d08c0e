"""How one manager scales: simulated ranks of real processes, each rank a socket of its own, on a real manager process.

Every iteration all ranks report within a window; the last report is rank 0's. `p50_ms`, `p99_ms`: from the moment that
it was sent to the plan's arrival at rank 0, both transports included. `manager_cpu_ms`: of the manager's process, an
iteration. `client_us_96`: CPU of a process with one lbbsp client and nothing else, an iteration, in one of ten jobs of
96 ranks, on the manager's machine, by its lane, less `timer_us`, what waking up for each iteration takes, where a rank
would train; `client_us_96_elsewhere`: as a rank on another one, by ZeroMQ.
Ranks and manager share this machine's cores, so figures for many ranks are upper bounds.
"""

import argparse
import json
import multiprocessing
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import psutil
import zmq

from lbbsp.protocol import Hello, Message, Report, decode_to_worker, encode
from lbbsp.worker.client import Client
from lbbsp.worker.identity import machine_name

SAMPLES = 32
WARM_UP = 5
JOBS = 10


@dataclass(frozen=True)
class Load:
    """One job's ranks and their rhythm."""

    name: str
    ranks: int
    iterations: int
    period_s: float
    spread_s: float
    """The window in which the reports of an iteration are sent."""


def hello(load: Load, rank: int) -> Hello:
    """What a rank says at first."""
    most = load.ranks * SAMPLES
    return Hello(
        job=load.name, incarnation="i", rank=rank, world_size=load.ranks, global_batch=most, min_samples=1,
        max_samples=most, machine=f"m{rank}",
    )  # fmt: skip


def report(load: Load, rank: int, iteration: int, noise: float) -> Report:
    """What a rank says of an iteration: one in four is half as fast."""
    own_time_s = load.period_s * 0.5 * (1 + (rank % 4 == 3)) * noise
    return Report(
        job=load.name, incarnation="i", rank=rank, iteration=iteration, samples=SAMPLES, own_time_s=own_time_s
    )  # fmt: skip


class Ranks:
    """Some ranks of a job in one process; `greet` makes what each says at first."""

    def __init__(
        self, address: str, load: Load, ranks: range, greet: Callable[[Load, int], Hello] | None = None
    ) -> None:
        self._load, self._ranks = load, ranks
        self._context: zmq.Context[Any] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, len(ranks) + 16)
        self._sockets = {rank: self._connect(address) for rank in ranks}
        for rank in ranks:
            self._send(rank, (greet or hello)(load, rank))
        for rank in ranks:
            self._sockets[rank].poll(60_000)
            self._sockets[rank].recv()

    def run(self, begin_s: float) -> list[float]:
        """All iterations; the latency of each plan in seconds, where rank 0 is here."""
        rng = np.random.default_rng(self._ranks.start)
        latencies_s = []
        for iteration in range(self._load.iterations):
            start_s = begin_s + iteration * self._load.period_s
            for rank, at_s, noise in self._order(rng):
                _sleep_until(start_s + at_s)
                self._send(rank, report(self._load, rank, iteration, noise))
            if 0 in self._ranks:
                latencies_s.append(self.plan(iteration, start_s + self._load.spread_s))
        return latencies_s

    def _order(self, rng: np.random.Generator) -> Iterator[tuple[int, float, float]]:
        others = [rank for rank in self._ranks if rank != 0]
        at_s = np.sort(rng.uniform(0, 0.95 * self._load.spread_s, len(others)))
        noise = rng.lognormal(0.0, 0.03, len(others) + 1)
        yield from zip(rng.permutation(others).tolist(), at_s.tolist(), noise.tolist(), strict=False)
        if 0 in self._ranks:
            yield 0, self._load.spread_s, float(noise[-1])

    def plan(self, iteration: int, sent_s: float = 0.0) -> float:
        """Wait for the plan that is based on this iteration."""
        sent_s = max(sent_s, self._sent_s)
        while self._sockets[0].poll(30_000):
            message = decode_to_worker(self._sockets[0].recv())
            if getattr(message, "based_on_iteration", -1) == iteration:
                return time.perf_counter() - sent_s
        raise SystemExit(f"no plan for iteration {iteration} of {self._load.ranks} ranks in 30 s")

    def _connect(self, address: str) -> Any:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(address)
        return socket

    def send(self, rank: int, frame: bytes) -> None:
        """One rank's frame."""
        self._sent_s = time.perf_counter()
        self._sockets[rank].send(frame)

    def _send(self, rank: int, message: Message) -> None:
        self.send(rank, encode(message))

    def close(self) -> None:
        """Hang up."""
        self._context.destroy(linger=0)


def _sleep_until(at_s: float) -> None:
    left_s = at_s - time.perf_counter()
    if left_s > 0:
        time.sleep(left_s)


def simulate(address: str, load: Load, ranks: range, ready: Any, go: Any, out: Any) -> None:
    """A process with some ranks."""
    mine = Ranks(address, load, ranks)
    ready.put(ranks.start)
    begin_s = go.get()
    out.put(mine.run(begin_s))
    go.get()
    mine.close()


def client_alone(address: str, load: Load, rank: int, machine: str, ready: Any, go: Any, out: Any) -> None:
    """A process with one client of ours; its CPU time an iteration."""
    client = Client(address, msgspec.structs.replace(hello(load, rank), machine=machine))
    while client.away:
        client.pump(0.05)
    client.pump(0.1)  # its lane is answered
    ready.put(rank)
    begin_s = go.get()
    _sleep_until(begin_s)
    began_s, asleep_s = time.process_time(), 0.0
    for iteration in range(load.iterations):
        asleep_s -= time.thread_time()
        _sleep_until(begin_s + iteration * load.period_s)
        asleep_s += time.thread_time()
        client.report(report(load, rank, iteration, 1.0))
    out.put([(time.process_time() - began_s) / load.iterations, asleep_s / load.iterations])
    go.get()
    client.close()


class Manager:
    """A manager's process; further arguments of its command line."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "lbbsp", "manager", "--bind", "tcp://127.0.0.1:0", *arguments]
        self._child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        line = ""
        while "listening on " not in line:
            line = self._child.stderr.readline()
        self.address = line.rpartition("listening on ")[2].split()[0]
        self.process = psutil.Process(self._child.pid)

    def cpu_s(self) -> float:
        """CPU time so far, all threads."""
        times = self.process.cpu_times()
        return times.user + times.system

    def stop(self) -> None:
        """End it."""
        self._child.terminate()
        self._child.wait()


def run(loads: list[Load], processes: int, alone: str = "") -> dict[str, float]:
    """All jobs at once on one manager; figures of the first. `alone`: the machine of a client with its own process."""
    manager, spawn = Manager(), multiprocessing.get_context("spawn")
    ready, go, out, alone_out = (spawn.SimpleQueue() for _ in range(4))
    started = []
    for number, load in enumerate(loads):
        first = int(bool(alone) and number == 0)
        for part in np.array_split(np.arange(load.ranks - first), processes):
            ranks = range(int(part[0]), int(part[-1]) + 1)
            started.append(spawn.Process(target=simulate, args=(manager.address, load, ranks, ready, go, out)))
    if alone:
        arguments = (manager.address, loads[0], loads[0].ranks - 1, alone, ready, go, alone_out)
        started.append(spawn.Process(target=client_alone, args=arguments))
    for process in started:
        process.start()
    for _ in started:
        ready.get()
    begin_s, before_s = time.perf_counter() + 1.0, manager.cpu_s()
    for _ in started:
        go.put(begin_s)
    latencies = [out.get() for _ in range(len(started) - bool(alone))]
    cpu_s = manager.cpu_s() - before_s
    memory = manager.process.memory_info().rss / 2**20
    sockets = len(manager.process.net_connections())
    client_s, timer_s = alone_out.get() if alone else (0.0, 0.0)
    for _ in started:
        go.put(None)
    for process in started:
        process.join()
    manager.stop()
    found = np.array([one[WARM_UP:] for one in latencies if one]).ravel()
    return {
        "p50_ms": round(1e3 * float(np.median(found)), 3),
        "p99_ms": round(1e3 * float(np.quantile(found, 0.99)), 3),
        "manager_cpu_ms": round(1e3 * cpu_s / loads[0].iterations, 2),
        "rss_mib": round(memory, 1),
        "sockets": sockets,
        "client_us": round(1e6 * (client_s - timer_s), 1),
        "timer_us": round(1e6 * timer_s, 1),
    }


def main() -> None:
    """Each number of ranks in turn, then ten jobs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=[96, 1_000, 10_000])
    parser.add_argument("--seconds", type=float, default=40.0, help="of each")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    result: dict[str, Any] = {}
    for ranks in arguments.ranks:
        period_s = max(0.2, ranks * 2e-4)
        load = Load("job", ranks, max(WARM_UP + 5, int(arguments.seconds / period_s)), period_s, 0.5 * period_s)
        result[str(ranks)] = run([load], processes=2 if ranks < 5000 else 4)
        print(ranks, "ranks:", result[str(ranks)], flush=True)
    loads = [Load(f"job{k}", 96, int(arguments.seconds / 0.2), 0.2, 0.1) for k in range(JOBS)]
    for name, machine in (("client_us_96", machine_name()), ("client_us_96_elsewhere", "elsewhere")):
        ten = run(loads, processes=1, alone=machine)
        result[name] = ten.pop("client_us")
        result["ten jobs of 96"] = ten
        print("ten jobs of 96 ranks:", ten, name, result[name], flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(result, file, indent=2)


if __name__ == "__main__":
    main()
