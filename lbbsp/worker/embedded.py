"""A manager of the job's own, where the user gave none: a child process of rank 0, gone when rank 0 is.

Started by exec, not fork, so that it shares nothing with the trainer but a pipe for its keys, which never
show on a command line. The child watches its parent's id: forked loader workers may hold the pipe open.
"""

import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import zmq

import lbbsp
from lbbsp.errors import ServiceError
from lbbsp.protocol import EmbeddedOrders, EmbeddedReady
from lbbsp.worker.line import CurveKeys

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 2.0
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Embedded(NamedTuple):
    """A running child and how to reach it."""

    process: "subprocess.Popen[bytes]"
    address: str
    curve: CurveKeys

    def stop(self) -> None:
        """End the child, at most 2 s."""
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start(
    bind_host: str = "127.0.0.1", timeout_s: float = START_TIMEOUT_S, log_level: str = "info",
    journal: Path | None = None, options: Sequence[str] = (),
) -> Embedded:  # fmt: skip
    """Start a manager that listens on a free port of bind_host, with keys for this job alone.

    Args:
        bind_host: address of an interface.
        timeout_s: for its answer.
        log_level: of its log.
        journal: file that keeps what was learnt for the job's next start; None: nothing is kept.
        options: more of `lbbsp manager`'s.

    Raises:
        ServiceError: it did not start, or not in time.
    """
    curve, orders = _one_time_keys()
    host = f"[{bind_host}]" if ":" in bind_host else bind_host
    options = ["--embedded", "--bind", f"tcp://{host}:0", "--log-level", log_level, *options]
    options += ["--journal", str(journal)] if journal else []
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "lbbsp", "manager", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=_environment(),
        start_new_session=True,
    )
    try:
        _give(process, msgspec.json.encode(orders))
        ready = msgspec.json.decode(_line(process, timeout_s), type=EmbeddedReady)
    except (OSError, msgspec.MsgspecError, TimeoutError) as error:
        process.kill()
        code = process.wait()
        raise ServiceError(
            f"the embedded manager did not start ({error}; exit code {code}): what it wrote above says more; "
            "or start `lbbsp manager` yourself and set LBBSP_MANAGER to its address"
        ) from error
    finally:
        _close_pipes(process)
    return Embedded(process, ready.address, curve)


def _one_time_keys() -> tuple[CurveKeys, EmbeddedOrders]:
    server_public, server_secret = (key.decode() for key in zmq.curve_keypair())
    client_public, client_secret = (key.decode() for key in zmq.curve_keypair())
    curve = CurveKeys(server_public=server_public, client_public=client_public, client_secret=client_secret)
    orders = EmbeddedOrders(parent=os.getpid(), server_secret=server_secret, clients=(client_public,))
    return curve, orders


def _environment() -> dict[str, str]:
    """Ours, with lbbsp importable wherever it lies, and no idle pools of threads."""
    environment = dict(os.environ)
    home = str(Path(lbbsp.__file__).parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), home)))
    return environment | dict.fromkeys(ONE_THREAD, "1")


def _give(process: "subprocess.Popen[bytes]", line: bytes) -> None:
    if process.stdin is not None:
        process.stdin.write(line + b"\n")
        process.stdin.flush()


def _line(process: "subprocess.Popen[bytes]", timeout_s: float) -> bytes:
    """The child's first line.

    Raises:
        TimeoutError: it did not come in time.
    """
    if process.stdout is None:
        return b""
    waiter = select.poll()
    waiter.register(process.stdout, select.POLLIN)
    until_s = time.perf_counter() + timeout_s
    while not waiter.poll(100):
        if time.perf_counter() > until_s:
            raise TimeoutError(f"no answer in {timeout_s:.0f} s")
    return process.stdout.readline()


def _close_pipes(process: "subprocess.Popen[bytes]") -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                continue
