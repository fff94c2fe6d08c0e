"""Runs one function on several ranks: real processes, gloo, one thread each; what they return or raise comes back.

Processes come from a fork server that has imported torch already, so that a job starts in a fraction of a second.
Knows nothing of balancing. Seconds.
"""

import atexit
import faulthandler
import logging
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

PRELOAD = ["torch", "torch._dynamo", "torch.nn.parallel", "torch.utils.data", "lbbsp.adapters.pytorch", "pytest"]
COLLECTIVE_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Outcome:
    """What became of one rank."""

    value: Any = None
    error: str | None = None
    """Type and text of what it raised; None where it returned."""
    trace: str = ""
    log: list[str] = field(default_factory=list)


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
    env: dict[str, str] | None = None,
    timeout_s: float = 60.0,
    watch: Callable[[list[int]], None] | None = None,
) -> list[Outcome]:
    """What became of case(rank, *args) on each rank.

    Args:
        world_size: ranks to run.
        case: a function of a module.
        args: its arguments, sent by pickle.
        env: environment variables of the ranks.
        timeout_s: until which all must have ended.
        watch: called once with the process ids, while they run.

    Raises:
        JobError: a rank hung; the text has every rank's stacks.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(world_size):
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_rank, args=(there, folder, rank, world_size, env or {}, case, args))
            process.start()
            there.close()
            pipes.append(here)
            processes.append(process)
        try:
            if watch is not None:
                watch([process.pid or 0 for process in processes])
            return _collect(pipes, processes, folder, timeout_s)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _collect(pipes: list[Connection], processes: list[Any], folder: str, timeout_s: float) -> list[Outcome]:
    ended: dict[int, Outcome] = {}
    until_s = time.perf_counter() + timeout_s
    while len(ended) < len(pipes):
        open_pipes = [pipe for rank, pipe in enumerate(pipes) if rank not in ended]
        ready = wait(open_pipes, timeout=max(0.0, until_s - time.perf_counter()))
        if not ready:
            raise JobError(f"hung after {timeout_s:.0f} s; ended: {ended}\n{_stacks(processes, folder)}")
        for pipe in ready:
            rank = pipes.index(pipe)  # type: ignore[arg-type]
            try:
                ended[rank] = pipe.recv()  # type: ignore[union-attr]
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


def _rank(
    pipe: Connection,
    folder: str,
    rank: int,
    world_size: int,
    env: dict[str, str],
    case: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    """One rank's process."""
    import torch
    import torch.distributed as dist

    with (Path(folder) / f"stack{rank}").open("w") as stacks:
        faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
        os.environ.update(env)
        torch.set_num_threads(1)
        multiprocessing.set_start_method("fork", force=True)  # loader workers as a program on Linux has them
        kept = _Kept()
        logging.getLogger("lbbsp").addHandler(kept)
        logging.getLogger("lbbsp").setLevel(logging.INFO)
        try:
            dist.init_process_group(
                "gloo",
                store=dist.FileStore(str(Path(folder) / "store"), world_size),
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_S),
            )
            outcome = Outcome(case(rank, *args), log=kept.lines)
        except BaseException as error:
            outcome = Outcome(None, f"{type(error).__name__}: {error}", traceback.format_exc(), kept.lines)
        pipe.send(outcome)
        pipe.close()
        atexit._run_exitfuncs()  # as a program's own end does; processes of multiprocessing leave it out
        faulthandler.unregister(signal.SIGUSR1)
