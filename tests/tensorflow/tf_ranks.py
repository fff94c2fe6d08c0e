"""Runs one function on several ranks of a MultiWorkerMirroredStrategy: real processes, TF_CONFIG on localhost.

A host process imports TensorFlow once and forks the ranks before any of them has run an operation. Knows nothing of
balancing. Seconds.
"""

import atexit
import faulthandler
import importlib
import json
import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Outcome:
    """What became of one process."""

    value: Any = None
    error: str | None = None
    """Type and text of what it raised; None where it returned."""
    trace: str = ""
    log: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Order:
    """What the host is asked to run."""

    tasks: list[dict[str, Any] | None]
    """TF_CONFIG of each process; None for none."""
    case: tuple[str, str]
    args: tuple[Any, ...]
    env: list[dict[str, str]]
    timeout_s: float
    needed: int | None


class JobError(AssertionError):
    """A rank raised, died or did not end in time."""


def run(world_size: int, case: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """What case(rank, *args) returns on each rank; see `outcomes` for the options.

    Raises:
        JobError: a rank raised or died; the text has every rank's trace.
    """
    ended = outcomes(world_size, case, *args, **options)
    if any(outcome.error for outcome in ended):
        raise JobError("\n".join(f"--- rank {rank}: {one.trace or 'ended well'}" for rank, one in enumerate(ended)))
    return [outcome.value for outcome in ended]


def outcomes(
    world_size: int,
    case: Callable[..., Any],
    *args: Any,
    env: dict[str, str] | list[dict[str, str]] | None = None,
    timeout_s: float = 90.0,
    watch: Callable[[list[int]], None] | None = None,
    cluster: dict[str, list[str]] | None = None,
    needed: int | None = None,
) -> list[Outcome]:
    """What became of case(rank, *args) on each process of a cluster.

    Args:
        world_size: workers to run.
        case: a function of a module.
        args: its arguments, sent by pickle.
        env: environment variables, of all or of each.
        timeout_s: until which all must have ended.
        watch: called once with the process ids, while they run.
        cluster: the processes by kind, in order; default: workers alone.
        needed: processes that must end, the first ones; the others are killed then. Default: all.

    Raises:
        JobError: a rank hung; the text has every rank's stacks.
    """
    if cluster is None:
        cluster = {"worker": addresses(world_size)}
    tasks = [
        {"cluster": cluster, "task": {"type": kind, "index": index}}
        for kind, places in cluster.items()
        for index in range(len(places))
    ]
    envs = env if isinstance(env, list) else [env or {}] * max(1, len(tasks))
    return host().order(
        Order(tasks if world_size else [None], (case.__module__, case.__name__), args, envs, timeout_s, needed), watch
    )


def addresses(count: int) -> list[str]:
    """Free ports of this machine."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return found


class Host:
    """The process that forks the ranks."""

    def __init__(self) -> None:
        os.environ.update(ENVIRONMENT)
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there,))
        self._process.start()
        there.close()
        atexit.register(self.close)

    def order(self, order: Order, watch: Callable[[list[int]], None] | None) -> list[Outcome]:
        self._pipe.send(order)
        pids = self._pipe.recv()
        if watch is not None:
            watch(pids)
        answer = self._pipe.recv()
        if isinstance(answer, str):
            raise JobError(answer)
        return answer

    def close(self) -> None:
        self._pipe.close()
        self._process.join(5)
        self._process.kill()


_hosts: list[Host] = []


def host() -> Host:
    """One for the session."""
    if not _hosts:
        _hosts.append(Host())
    return _hosts[0]


# --- inside the host


def _serve(pipe: Connection) -> None:
    for name in ("tensorflow", "lbbsp.adapters.tensorflow"):
        importlib.import_module(name)
    context = multiprocessing.get_context("fork")
    while True:
        try:
            order = pipe.recv()
        except EOFError:
            return
        with tempfile.TemporaryDirectory() as folder:
            pipe.send(_run(context, order, folder, pipe))


def _run(context: Any, order: Order, folder: str, back: Connection) -> list[Outcome] | str:
    pipes, processes = [], []
    for rank, task in enumerate(order.tasks):
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_rank, args=(there, folder, rank, task, order))
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    back.send([process.pid for process in processes])
    try:
        return _collect(pipes[: order.needed], processes, folder, order.timeout_s)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _collect(pipes: list[Connection], processes: list[Any], folder: str, timeout_s: float) -> list[Outcome] | str:
    ended: dict[int, Outcome] = {}
    until_s = time.perf_counter() + timeout_s
    while len(ended) < len(pipes):
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in ended]
        ready = wait(waiting, timeout=max(0.0, until_s - time.perf_counter()))
        if not ready:
            return f"hung after {timeout_s:.0f} s; ended: {ended}\n{_stacks(processes, folder)}"
        for pipe in ready:
            rank = pipes.index(pipe)
            try:
                ended[rank] = pipe.recv()
            except EOFError:
                processes[rank].join(5)
                ended[rank] = Outcome(error="died", trace=f"died, exit code {processes[rank].exitcode}")
    return [ended[rank] for rank in range(len(pipes))]


def _stacks(processes: list[Any], folder: str) -> str:
    for process in processes:
        if process.is_alive():
            os.kill(process.pid, signal.SIGCONT)
            os.kill(process.pid, signal.SIGUSR1)
    time.sleep(0.5)
    return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(Path(folder).glob("stack*")))


class _Kept(logging.Handler):
    """Keeps what is logged, as text."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


def _rank(pipe: Connection, folder: str, rank: int, task: dict[str, Any] | None, order: Order) -> None:
    """One rank's process."""
    kept = _Kept()
    with (Path(folder) / f"stack{rank}").open("w") as stacks:
        faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
        os.environ.update(order.env[rank])
        if task is not None:
            os.environ["TF_CONFIG"] = json.dumps(task)
        logging.getLogger("lbbsp").addHandler(kept)
        logging.getLogger("lbbsp").setLevel(logging.INFO)
        try:
            import tensorflow as tf

            logging.getLogger("tensorflow").setLevel(logging.ERROR)
            tf.config.threading.set_intra_op_parallelism_threads(1)
            module, name = order.case
            outcome = Outcome(getattr(importlib.import_module(module), name)(rank, *order.args), log=kept.lines)
        except BaseException as error:
            outcome = Outcome(None, f"{type(error).__name__}: {error}", traceback.format_exc(), kept.lines)
        pipe.send(outcome)
        pipe.close()
        atexit._run_exitfuncs()  # as a program's own end does; processes of multiprocessing leave it out
        sys.stdout.flush()
        os._exit(0)
