"""Starts a job's real ranks, and brings back their accounts.

Ranks are forked from a server that imported everything once (`forkserver`), so that four of them start in little
more than the time of one. The job's store lives in the caller.
"""

import json
import multiprocessing
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.schemes.world import Setup

PRELOAD = ["torch.distributed", "sklearn.datasets", "bench.schemes.rank_dybw", "bench.schemes.rank_speculation"]


def launch(scheme: str, load: str, setup: Setup) -> list[dict[str, Any]]:
    """Run a job on real ranks; each one's account.

    Raises:
        RuntimeError: a rank failed, or took a minute and a second an iteration.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{rank}.json" for rank in range(setup.workers)]
        ranks = [context.Process(target=be_rank, args=(rank, store.port, scheme, load, setup, path))
                 for rank, path in enumerate(paths)]  # fmt: skip
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(timeout=60 + setup.iterations)
        codes = [process.exitcode for process in ranks]
        for process in ranks:
            process.kill()
            process.join()
        if any(code != 0 for code in codes):
            raise RuntimeError(f"ranks ended with {codes}: wanted 0 from each (None: it took too long)")
        return [json.loads(path.read_text()) for path in paths]


def be_rank(number: int, port: int, scheme: str, load: str, setup: Setup, account: Path) -> None:
    """Join the job, train, write the account."""
    import torch
    import torch.distributed as dist
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from bench.schemes import rank_dybw, rank_speculation
    from bench.schemes.rank import Rank

    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=number, world_size=setup.workers)
    rank = Rank(number, setup, load, store)
    dist.barrier()
    rank.agree_on_start()
    (rank_dybw if scheme == "cb-dybw" else rank_speculation).train(rank)
    rank.account.weights = [float(weight) for weight in rank.weights]
    account.write_text(json.dumps(asdict(rank.account)))
    dist.barrier()
    dist.destroy_process_group()
