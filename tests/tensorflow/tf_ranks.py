"""Runs one function on several ranks of a MultiWorkerMirroredStrategy: real processes, TF_CONFIG on localhost.

A host process imports TensorFlow once and forks the ranks before any of them has run an operation. Knows nothing of
balancing. Seconds.
"""

import atexit
import functools
import importlib
import json
import logging
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from outcomes import JobError, Outcome, collect, tell, values

from lbbsp.demo.tensorflow_job import addresses

__all__ = ["SOON", "JobError", "Outcome", "addresses", "outcomes", "run"]

SOON = {"DEAD_AFTER_S": "4"}
"""For ranks whose peers die: TensorFlow calls a peer dead after so long without a sign of it, by itself 10 s."""
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}


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


def run(world_size: int, case: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """What case(rank, *args) returns on each rank; see `outcomes` for the options.

    Raises:
        JobError: a rank raised or died; the text has every rank's trace.
    """
    return values(outcomes(world_size, case, *args, **options))


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
        return collect(pipes[: order.needed], processes, folder, order.timeout_s)
    except JobError as error:
        return str(error)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _rank(pipe: Connection, folder: str, rank: int, task: dict[str, Any] | None, order: Order) -> None:
    """One rank's process."""

    def joined() -> Any:
        import tensorflow as tf

        logging.getLogger("tensorflow").setLevel(logging.ERROR)
        tf.config.threading.set_intra_op_parallelism_threads(1)
        _notice_the_dead()
        module, name = order.case
        return getattr(importlib.import_module(module), name)(rank, *order.args)

    config = {} if task is None else {"TF_CONFIG": json.dumps(task)}
    tell(pipe, folder, rank, order.env[rank] | config, joined)
    sys.stdout.flush()
    os._exit(0)


def _notice_the_dead() -> None:
    """As SOON says, where it is in the environment; the strategy has no argument for it."""
    from tensorflow.python.eager import context

    if timeout_s := os.environ.get("DEAD_AFTER_S"):
        known: Any = context.context()
        timeout = {"heartbeat_timeout_in_ms": 1000 * int(timeout_s)}
        known.configure_coordination_service = functools.partial(known.configure_coordination_service, **timeout)
