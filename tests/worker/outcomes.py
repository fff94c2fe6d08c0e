"""What becomes of a case on each of several ranks, whatever starts their processes: results, errors, logs, hangs.

Knows neither frameworks nor balancing. Seconds.
"""

import atexit
import faulthandler
import logging
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from random_manager import let_plans_come_in_time


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


def values(ended: list[Outcome]) -> list[Any]:
    """What each rank returned.

    Raises:
        JobError: a rank raised or died; the text has every rank's trace.
    """
    if any(outcome.error for outcome in ended):
        raise JobError("\n".join(f"--- rank {rank}: {one.trace or 'ended well'}" for rank, one in enumerate(ended)))
    return [outcome.value for outcome in ended]


def collect(pipes: list[Connection], processes: list[Any], folder: str, timeout_s: float) -> list[Outcome]:
    """The outcomes of the processes at these pipes.

    Raises:
        JobError: a rank hung; the text has every rank's stacks.
    """
    ended: dict[int, Outcome] = {}
    until_s = time.perf_counter() + timeout_s
    while len(ended) < len(pipes):
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in ended]
        ready = wait(waiting, timeout=max(0.0, until_s - time.perf_counter()))
        if not ready:
            raise JobError(f"hung after {timeout_s:.0f} s; ended: {ended}\n{_stacks(processes, folder)}")
        for pipe in ready:
            rank = pipes.index(pipe)
            try:
                ended[rank] = pipe.recv()
            except EOFError:
                processes[rank].join(5)
                ended[rank] = Outcome(error="died", trace=f"died, exit code {processes[rank].exitcode}")
    return [ended[rank] for rank in range(len(pipes))]


def tell(pipe: Connection, folder: str, rank: int, env: dict[str, str], case: Callable[[], Any]) -> None:
    """In a rank's process: run the case, send its outcome, end as a program ends."""
    with (Path(folder) / f"stack{rank}").open("w") as stacks:
        faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
        os.environ.update(env)
        let_plans_come_in_time()
        kept = _Kept()
        logging.getLogger("lbbsp").addHandler(kept)
        logging.getLogger("lbbsp").setLevel(logging.INFO)
        try:
            outcome = Outcome(case(), log=kept.lines)
        except BaseException as error:
            outcome = Outcome(None, f"{type(error).__name__}: {error}", traceback.format_exc(), kept.lines)
        pipe.send(outcome)
        pipe.close()
        atexit._run_exitfuncs()  # as a program's own end does; processes of multiprocessing leave it out
        faulthandler.unregister(signal.SIGUSR1)


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
