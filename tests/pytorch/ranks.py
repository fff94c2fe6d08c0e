"""Runs one function on several ranks: real processes, gloo, one thread each; what they return or raise comes back.

Processes come from a fork server that has imported torch already, so that a job starts in a fraction of a second.
Knows nothing of balancing. Seconds.
"""

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from outcomes import JobError, Outcome, collect, tell, values

__all__ = ["JobError", "Outcome", "outcomes", "run"]

PRELOAD = [
    *("torch", "torch._dynamo", "torch.nn.parallel", "torch.utils.data", "torch.distributed.run"),
    *("lbbsp.adapters.pytorch", "pytest"),
    "sklearn.datasets",  # of tests/schemes, whose ranks come from the same server
]
COLLECTIVE_TIMEOUT_S = 30.0


def forking() -> Any:
    """The context whose processes come from that server."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by torch as it is imported
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


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
    context = forking()
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
            return collect(pipes, processes, folder, timeout_s)
        finally:
            for process in processes:
                process.kill()
                process.join()


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

    def joined() -> Any:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        multiprocessing.set_start_method("fork", force=True)  # loader workers as a program on Linux has them
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(str(Path(folder) / "store"), world_size),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_S),
        )
        return case(rank, *args)

    tell(pipe, folder, rank, env, joined)
