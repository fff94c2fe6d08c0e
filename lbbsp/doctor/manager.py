"""Whether a manager answers: the given one, or else one of our own for a moment, as a job would start it."""

import os
import time
import uuid
from collections.abc import Iterator

from lbbsp.doctor.finding import Finding, Level
from lbbsp.errors import ConfigError, ServiceError
from lbbsp.protocol import PROTOCOL, Hello, Look
from lbbsp.top.asking import Asker
from lbbsp.worker import embedded
from lbbsp.worker.client import Client, CurveKeys
from lbbsp.worker.keyfile import client_curve

PATIENCE_S = 5.0


def manager_findings(address: str | None) -> Iterator[Finding]:
    """Try the argument, else LBBSP_MANAGER, else an embedded manager."""
    address = address or os.environ.get("LBBSP_MANAGER")
    if address:
        yield _given(address)
        return
    before_s = time.perf_counter()
    try:
        child = embedded.start(log_level="warning")
    except ServiceError as error:
        yield Finding("manager", str(error), Level.PROBLEM, "start `lbbsp manager` and set LBBSP_MANAGER")
        return
    started_s = time.perf_counter() - before_s
    found = reach(child.address, child.curve)
    child.stop()
    if found.level is Level.OK:
        found = Finding("manager", f"one of a job's own starts in {started_s:.1f} s and answers; none was given")
    yield found


def _given(address: str) -> Finding:
    """With a key we only look: a hello in the name of the key's job could move a job that runs."""
    try:
        return reach(address) if client_curve() is None else _seen(address)
    except ConfigError as error:
        return Finding("manager", str(error), Level.PROBLEM, "let LBBSP_KEYS name a file that `lbbsp keys` made")


def _seen(address: str) -> Finding:
    asker = Asker(address)
    before_s = time.perf_counter()
    try:
        jobs = asker.ask(Look(), PATIENCE_S).jobs
    except ServiceError:
        return _silent(address, PATIENCE_S)
    finally:
        asker.close()
    answered_s = time.perf_counter() - before_s
    return Finding(
        "manager", f"{address} answers our key in {1e3 * answered_s:.0f} ms; jobs that it may see: {len(jobs)}"
    )


def reach(address: str, curve: CurveKeys | None = None, patience_s: float = PATIENCE_S) -> Finding:
    """Say hello as a job of one rank, and bye."""
    name = f"doctor-{uuid.uuid4().hex[:8]}"
    hello = Hello(
        job=name, incarnation=name, rank=0, world_size=1, global_batch=1, min_samples=0, max_samples=1, mode="observe"
    )  # fmt: skip
    try:
        client = Client(address, hello, curve=curve)
    except ConfigError as error:
        return Finding("manager", str(error), Level.PROBLEM, "give tcp://HOST:PORT")
    before_s = time.perf_counter()
    while client.away and client.refused is None and time.perf_counter() - before_s < patience_s:
        client.pump(0.01)
    answered_s = time.perf_counter() - before_s
    away, refused = client.away, client.refused
    client.close()
    if refused is not None:
        return Finding(
            "manager", f"{address} refuses us: {refused}", Level.PROBLEM, "install the same lbbsp on both sides"
        )
    if away:
        return _silent(address, patience_s)
    return Finding("manager", f"{address} answers in {1e3 * answered_s:.0f} ms, protocol {PROTOCOL}")


def _silent(address: str, patience_s: float) -> Finding:
    return Finding(
        "manager",
        f"{address} does not answer in {patience_s:.0f} s",
        Level.PROBLEM,
        "is `lbbsp manager` running there, bound to an address that this machine reaches (not 127.0.0.1 from "
        "another host), the port open in the firewall, and does LBBSP_KEYS name a key that it knows, where it wants "
        "keys? Jobs train on without it",
    )
