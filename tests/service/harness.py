"""What the tests of the service share: a manager's process, and jobs whose ranks all live in the test."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lbbsp.protocol import Hello, Plan, Report
from lbbsp.worker.client import Client

PATIENCE_S = 20.0
OTHERWISE = """
import json, pkgutil, sys
for name, value in json.loads(sys.argv.pop(1)).items():
    owner, _, constant = name.rpartition(".")
    assert hasattr(pkgutil.resolve_name(owner), constant), name
    setattr(pkgutil.resolve_name(owner), constant, value)
from lbbsp.cli import main
main()
"""


def until(condition, what: str, tick=lambda: time.sleep(0.01)) -> None:
    """Wait for a condition, ticking."""
    deadline_s = time.perf_counter() + PATIENCE_S
    while not condition():
        tick()
        assert time.perf_counter() < deadline_s, f"{what}: not in {PATIENCE_S:.0f} s"


class ManagerProcess:
    """`lbbsp manager` on a port of 127.0.0.1, its log in a file.

    Args:
        log: the file.
        port: 0 for any.
        options: of the command.
        constants: of lbbsp, by their full names, with other values: what takes 5 s may then take 1 s.
    """

    def __init__(
        self, log: Path, port: int = 0, options: Sequence[str] = (), constants: dict[str, float] | None = None
    ) -> None:
        self.log_file = log
        bind = f"tcp://127.0.0.1:{port}"
        with log.open("ab") as out:
            start = out.tell()
            program = ["-c", OTHERWISE, json.dumps(constants)] if constants else ["-m", "lbbsp"]
            self.process = subprocess.Popen([sys.executable, *program, "manager", "--bind", bind, *options], stderr=out)
        until(lambda: "listening on" in self.log(start) or self.process.poll() is not None, "listening")
        self.address = self.log(start).rpartition("listening on ")[2].split("\n")[0]

    def log(self, start: int = 0) -> str:
        return self.log_file.read_bytes()[start:].decode()

    def send(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def stop(self, number: int = signal.SIGKILL) -> int:
        if self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.send(number)
        return self.process.wait(PATIENCE_S)


class Ranks:
    """All ranks of a job; rank r processes speeds[r] samples a second."""

    def __init__(self, address: str, job: str, speeds: Sequence[float] = (1000.0, 2000.0), **fields) -> None:
        self.ids = {"job": job, "incarnation": fields.pop("incarnation", "first")}
        self.speeds = speeds
        self.global_batch = fields.pop("global_batch", 90)
        curve = fields.pop("curve", None)
        self.sizes = [self.global_batch // len(speeds)] * len(speeds)
        self.iteration = 0
        self.clients = [
            Client(address, self.hello(rank, **fields), curve=curve) for rank in range(len(speeds))
        ]  # fmt: skip

    def hello(self, rank: int, **fields) -> Hello:
        usual = {"min_samples": 0, "max_samples": self.global_batch, "machine": f"m{rank}"}
        return Hello(
            **self.ids, rank=rank, world_size=len(self.speeds), global_batch=self.global_batch, **usual | fields
        )

    def report(self, rank: int, iteration: int | None = None, **fields) -> Report:
        samples = fields.pop("samples", self.sizes[rank])
        own_time_s = fields.pop("own_time_s", (samples + 1) / self.speeds[rank])
        number = self.iteration if iteration is None else iteration
        return Report(**self.ids, rank=rank, iteration=number, samples=samples, own_time_s=own_time_s, **fields)

    def pump(self) -> None:
        for client in self.clients:
            client.pump(0.001)

    def join(self) -> "Ranks":
        until(lambda: not any(client.away for client in self.clients), "welcome", self.pump)
        return self

    def step(self, *, adopt: bool = True) -> Plan:
        """One iteration of all ranks; the plan that it brings."""
        for rank in reversed(range(len(self.speeds))):
            self.clients[rank].report(self.report(rank))
        until(self._planned, f"the plan of iteration {self.iteration}", self.pump)
        plan = self.clients[0].plan()
        assert plan is not None
        if adopt:
            self.sizes = list(plan.sizes)
        self.iteration += 1
        return plan

    def _planned(self) -> bool:
        plan = self.clients[0].plan()
        return plan is not None and plan.based_on_iteration == self.iteration

    def close(self) -> None:
        for client in self.clients:
            client.close()
