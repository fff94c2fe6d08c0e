"""Mutated frames at a live manager that serves a real job: no crash, no plan moved or lost, memory flat.

The manager demands keys. Attackers hold the key of other jobs; they say what is sound for those, what is about the
real job, and mutations of both, and break the wire's own bytes. Mutations also come through the real job's own
connections, where they can't pass for its next report. The job's plans must be those that a table of jobs in this
process makes of the same reports. Seeded; MiB, seconds.
"""

import argparse
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import zmq
from mutations import BROKEN, mutated

from lbbsp.protocol import UNREADABLE, Bye, Hello, Look, Plan, Report, ToManager, decode_to_manager, encode
from lbbsp.service.job import sizer_maker
from lbbsp.service.keys import make_client, make_server
from lbbsp.service.table import JobTable
from lbbsp.worker.client import Client
from lbbsp.worker.keyfile import client_curve
from lbbsp.worker.line import CurveKeys, open_line

RANKS, GLOBAL_BATCH = 4, 256
ATTACKERS = 4
BATCH = 500
"""Mutated frames for each iteration of the real job; then the manager reads them all, so that memory says something."""
OWN_SHARE = 0.05
"""Mutations that come through the real job's own connections."""
SOUND_SHARE = 0.25
"""Frames of attackers that are left as they are."""
WIRE_EVERY = 20
"""Batches between attacks on the wire's own bytes."""
PLAN_WITHIN_S = 30.0
WARM_SHARE = 0.1
"""Memory is compared from here on."""


class Target:
    """A manager's process with keys and metrics."""

    def __init__(self, folder: Path) -> None:
        make_server(folder / "keys")
        for name, jobs in (("real", "real"), ("other", "other*")):
            make_client(folder / "keys", jobs, name)
        self.log = folder / "log"
        options = ["--bind", "tcp://127.0.0.1:0", "--keys", str(folder / "keys"), "--metrics", "127.0.0.1:0"]
        with self.log.open("wb") as out:
            command = [sys.executable, "-m", "lbbsp", "manager", *options, "--max-rate", "10000000"]
            self.process = subprocess.Popen(command, stderr=out)
        self.address, self.metrics = self._said("listening on "), self._said("metrics on ")
        self.keys = {name: _key(folder / "keys" / f"{name}.key") for name in ("real", "other")}

    def _said(self, words: str) -> str:
        while words not in (text := self.log.read_text()):
            if self.process.poll() is not None:
                raise SystemExit(text)
            time.sleep(0.02)
        return text.partition(words)[2].split("\n")[0]

    def rss_mib(self) -> float:
        """Resident memory of the manager."""
        return psutil.Process(self.process.pid).memory_info().rss / 2**20

    def rejected(self) -> dict[str, int]:
        """Counts by kind, as the manager tells them."""
        with urllib.request.urlopen(self.metrics, timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        wanted = [line for line in lines if line.startswith("lbbsp_rejected_messages_total{")]
        return {line.split('"')[1]: int(float(line.rpartition(" ")[2])) for line in wanted}


def _key(path: Path) -> CurveKeys:
    key = client_curve(str(path))
    if key is None:
        raise SystemExit(f"{path} holds no key")
    return key


class RealJob:
    """Ranks with speeds that change, and the table that says what their plans must be."""

    def __init__(self, target: Target, seed: int) -> None:
        self.dice = random.Random(seed)
        self.ids = {"job": "real", "incarnation": "first"}
        self.hellos = [self._hello(rank) for rank in range(RANKS)]
        self.clients = [Client(target.address, hello, curve=target.keys["real"]) for hello in self.hellos]
        self.twin = JobTable(sizer_maker("ema"))
        for hello in self.hellos:
            self.twin.handle(b"%d" % hello.rank, encode(hello), 0.0)
        self.iteration, self.moved, self.changes = 0, 0, 0
        self.sizes = (GLOBAL_BATCH // RANKS,) * RANKS
        self._speeds = [1_000.0] * RANKS

    def _hello(self, rank: int) -> Hello:
        return Hello(
            **self.ids, rank=rank, world_size=RANKS, global_batch=GLOBAL_BATCH, min_samples=0, max_samples=GLOBAL_BATCH
        )

    def join(self) -> None:
        """Wait until all ranks are welcome."""
        until_s = time.perf_counter() + PLAN_WITHIN_S
        while any(client.away for client in self.clients) and time.perf_counter() < until_s:
            self.pump()

    def pump(self) -> None:
        """Take what has come in."""
        for client in self.clients:
            client.pump(0.0005)

    def step(self) -> bool:
        """One iteration; False where its plan did not come."""
        if self.iteration % 10 == 0:
            self._speeds = [self.dice.choice((500.0, 1_000.0, 2_000.0)) for _ in range(RANKS)]
        reports = [self.report(rank) for rank in range(RANKS)]
        wanted = None
        for rank, report in enumerate(reports):
            self.clients[rank].report(report)
            for _, reply in self.twin.handle(b"%d" % rank, encode(report), 0.0):
                wanted = reply if isinstance(reply, Plan) else wanted
        if wanted is None:
            raise SystemExit("the table in this process made no plan")
        until_s = time.perf_counter() + PLAN_WITHIN_S
        while (plan := self.clients[0].plan()) is None or plan.based_on_iteration < self.iteration:
            self.pump()
            if time.perf_counter() > until_s:
                return False
        self.moved += plan.sizes != wanted.sizes
        self.changes += plan.sizes != self.sizes
        self.sizes = plan.sizes
        self.iteration += 1
        return True

    def report(self, rank: int) -> Report:
        """What this rank might say now."""
        samples = self.sizes[rank]
        own_s = (samples + 2) / self._speeds[rank] * self.dice.uniform(0.98, 1.02)
        return Report(**self.ids, rank=rank, iteration=self.iteration, samples=samples, own_time_s=own_s, wait_s=0.01)

    def could_be_ours(self, frame: bytes) -> bool:
        """Whether the manager might take this frame of one of our connections for what it is not."""
        try:
            message: ToManager = decode_to_manager(frame)
        except UNREADABLE:
            return b"hello" in frame  # a hello that can't be read is refused, and our client would believe that
        return not isinstance(message, Report) or message.iteration >= self.iteration


class Attacker:
    """A connection with the key of other jobs, and a job of its own that it half runs."""

    def __init__(self, target: Target, number: int, dice: random.Random) -> None:
        self.dice = dice
        self.context, self.socket = open_line(target.address, target.keys["other"])
        self.name, self.iteration = f"other-{number}", 0

    def sound(self, job: "RealJob") -> bytes:
        """A message that is sound, of its own job or about the real one."""
        dice, ranks = self.dice, 2
        rank = dice.randrange(ranks)
        if dice.random() < 0.3:
            about = dice.choice((job.hellos[rank], job.report(rank), Bye(**job.ids, rank=rank), Look(job="real")))
            return encode(about)
        ids = {"job": self.name, "incarnation": dice.choice(("first", "second"))}
        match dice.randrange(10):
            case 0 | 1:
                return encode(Hello(**ids, rank=rank, world_size=ranks, global_batch=64, min_samples=0, max_samples=64))
            case 2:
                return encode(Look(job=self.name, thresholds={"history.ratio": dice.uniform(1, 2)}))
            case 3 if dice.random() < 0.1:
                return encode(Bye(**ids, rank=rank))
            case _:
                self.iteration += dice.random() < 0.1
                own_s = dice.uniform(0.01, 1.0)
                return encode(Report(**ids, rank=rank, iteration=self.iteration, samples=32, own_time_s=own_s))

    def send(self, frame: bytes) -> None:
        """Send, waiting for room; answers are thrown away."""
        while self.socket.poll(0):
            self.socket.recv_multipart(zmq.NOBLOCK)
        self.socket.poll(10_000, zmq.POLLOUT)
        self.socket.send(frame, zmq.NOBLOCK)

    def settle(self, mark: int) -> None:
        """Wait until the manager has read all that was sent: it answers each connection's frames in their order."""
        name, until_s = f"mark {mark}", time.perf_counter() + PLAN_WITHIN_S
        while time.perf_counter() < until_s:
            self.send(encode(Look(job=name)))  # again, where the line was cut after too long a frame
            while self.socket.poll(1_000):
                if name.encode() in self.socket.recv_multipart(zmq.NOBLOCK)[-1]:
                    return

    def close(self) -> None:
        """Hang up."""
        self.context.destroy(linger=0)


def break_wire(target: Target, dice: random.Random) -> None:
    """One connection whose greeting and first commands are broken."""
    host, _, port = target.address.removeprefix("tcp://").rpartition(":")
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + dice.choice((b"CURVE", b"NULL")).ljust(20, b"\0") + bytes(32)
    command = b"\x04\xc8\x05HELLO\x01\x00" + dice.randbytes(192)
    said = dice.choice(BROKEN)(dice, greeting + command, command)
    try:
        with socket.create_connection((host, int(port)), timeout=5.0) as line:
            line.sendall(said)
    except OSError:
        return


def fuzz(frames: int, seed: int, folder: Path) -> dict[str, Any]:
    """Send so many mutated frames; what came of it."""
    target = Target(folder)
    try:
        return _fuzz(target, frames, seed)
    finally:
        target.process.kill()
        target.process.wait()


def _fuzz(target: Target, frames: int, seed: int) -> dict[str, Any]:
    dice = random.Random(seed)
    job = RealJob(target, seed)
    job.join()
    attackers = [Attacker(target, number, dice) for number in range(ATTACKERS)]
    sent, batches, lost, warm_mib = Counter[str](), 0, 0, 0.0
    began_s = time.perf_counter()
    while sent.total() < frames and target.process.poll() is None and not lost:
        for _ in range(min(BATCH, frames - sent.total())):
            sent[_attack(dice, job, attackers)] += 1
        batches += 1
        for attacker in attackers:
            attacker.settle(10_000_000 + batches)
        if batches % WIRE_EVERY == 0:
            break_wire(target, dice)
            attackers.append(Attacker(target, batches, dice))
            attackers.pop(0).close()
        lost += not job.step()
        if not warm_mib and sent.total() >= WARM_SHARE * frames:
            warm_mib = target.rss_mib()
    crashed = target.process.poll() is not None
    rejected = {} if crashed else target.rejected()
    result = {
        "frames": sent.total(), "seed": seed, "seconds": round(time.perf_counter() - began_s, 1), "through": dict(sent),
        "iterations": job.iteration, "plan_changes": job.changes, "plans_moved": job.moved, "plans_lost": lost,
        "crashed": crashed, "faults": sum(count for kind, count in rejected.items() if kind.startswith("internal")),
        "rss_mib": [round(warm_mib, 1), 0.0 if crashed else round(target.rss_mib(), 1)], "rejected": rejected,
        "log_lines": target.log.read_bytes().count(b"\n"),
    }  # fmt: skip
    for one in (*attackers, *job.clients):
        one.close()
    target.process.terminate()
    result["exit_code"] = target.process.wait(20)
    if crashed or result["faults"]:
        text = target.log.read_text()
        sys.stderr.write(text[max(0, text.find("Traceback") - 300) :][:6_000] if "Traceback" in text else text[-3_000:])
    return result


def _attack(dice: random.Random, job: RealJob, attackers: list[Attacker]) -> str:
    """One frame; returns the way it went."""
    attacker = dice.choice(attackers)
    if dice.random() < OWN_SHARE:
        rank = dice.randrange(RANKS)
        frame = mutated(dice, encode(job.report(rank)), encode(job.hellos[rank]))
        if not job.could_be_ours(frame):
            job.clients[rank].socket.poll(10_000, zmq.POLLOUT)
            job.clients[rank].socket.send(frame, zmq.NOBLOCK)
            return "own connection"
    frame = attacker.sound(job)
    if dice.random() < SOUND_SHARE:
        attacker.send(frame)
        return "sound, other key"
    attacker.send(mutated(dice, frame, attacker.sound(job)))
    return "other key"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--growth", type=float, default=16.0, help="MiB that memory may grow from a tenth of the way on."
    )
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = fuzz(arguments.frames, arguments.seed, Path(folder))
    grown = result["rss_mib"][1] - result["rss_mib"][0]
    bad = [name for name in ("crashed", "plans_moved", "plans_lost", "faults", "exit_code") if result[name]]
    bad += ["rss_mib"] * (grown > arguments.growth)
    result["ok"] = not bad
    print(json.dumps(result) if arguments.json else "\n".join(f"{name:14} {value}" for name, value in result.items()))
    sys.exit(f"not as it must be: {', '.join(bad)}" if bad else 0)


if __name__ == "__main__":
    main()
