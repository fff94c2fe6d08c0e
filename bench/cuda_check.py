"""One prepared check for a machine with a CUDA GPU: two ranks on one card, unequal load, a real out-of-memory.

1. own times by CUDA events against the load put on each rank; 2. sizes follow the load (rule `adaptive`); 3. a cap
on one rank's memory (set_per_process_memory_fraction) makes batches fail for real: balancer.run survives and both
ranks end with the same parameters; 4. NVML readings are there. Prints one line a check and one JSON line; ends with 1
where a check fails. NOT YET RUN ON A GPU: no figure of it is published until it has been.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lbbsp.adapters.pytorch import Balancer
from lbbsp.worker.gpu import gpu_sources

WIDTH = 2048


class Net(nn.Module):
    """A stack of matrices that is worked `repeats` times over: the load of a rank."""

    def __init__(self, repeats: int) -> None:
        super().__init__()
        self.layers, self.repeats = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4)), repeats

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Same parameters and result whatever the load; only the work done beside it differs."""
        with torch.no_grad():
            waste = x
            for _ in range(self.repeats):
                waste = torch.relu(self.layers[0](waste))
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x + 0.0 * waste.mean()


def main() -> None:
    """Run the checks on two ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--global-batch", type=int, default=4096)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--load", type=int, default=12, help="extra work of rank 1")
    parser.add_argument("--memory-share", type=float, default=0.02, help="of the card, for rank 1 in the third check")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device: this check needs one GPU")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LBBSP_STATE_DIR"] = folder
        mp.spawn(_rank, args=(folder, options), nprocs=2)
        ranks = [json.loads((Path(folder) / f"rank{rank}").read_text()) for rank in range(2)]
    failed = _judge(ranks, options)
    print(json.dumps({"device": torch.cuda.get_device_name(0), "torch": torch.__version__, "ranks": ranks}))
    sys.exit(int(failed))


def _rank(rank: int, folder: str, options: argparse.Namespace) -> None:
    """gloo, since NCCL refuses two ranks on one card; gradients go through the host."""
    store = dist.FileStore(str(Path(folder) / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.cuda.set_device(0)
    found = {"load": _train(rank, options, options.load * rank, 1.0)}
    found["memory"] = _train(rank, options, 0, options.memory_share if rank else 1.0)
    (source,) = gpu_sources(0) or [None]
    found["nvml"] = dict(zip(source.names, source.read(0.0), strict=True)) if source else {}
    (Path(folder) / f"rank{rank}").write_text(json.dumps(found))
    dist.destroy_process_group()


def _train(rank: int, options: argparse.Namespace, repeats: int, memory_share: float) -> dict[str, Any]:
    torch.manual_seed(0)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(memory_share)
    model = Net(repeats).cuda()
    ddp = DistributedDataParallel(model, device_ids=[0])
    balancer = Balancer(ddp, global_batch=options.global_batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = ddp(x).square().mean()
        loss.backward()
        return loss.detach()

    sizes = []
    for _ in range(options.iterations):
        batch = torch.randn(options.global_batch, WIDTH, generator=torch.Generator().manual_seed(1))
        mine = batch[balancer.slice(options.global_batch)].cuda()
        sizes.append(len(mine))
        optimizer.zero_grad()
        balancer.run(step, mine)
        optimizer.step()
        balancer.step()
    result = {
        "sizes": sizes,
        "own_time_s": balancer.stats()["lbbsp/own_time_s"],
        "failures": balancer.memory.model.failures,
        "bound": balancer.memory.model.bound(),
        "checksum": float(sum(parameter.double().sum() for parameter in model.parameters())),
    }
    balancer.close()
    torch.cuda.set_per_process_memory_fraction(1.0)
    return result


def _judge(ranks: list[dict[str, Any]], options: argparse.Namespace) -> bool:
    first, second = ranks
    checks = {
        "the loaded rank has less": second["load"]["sizes"][-1] < 0.8 * first["load"]["sizes"][-1],
        "a real out-of-memory was met": second["memory"]["failures"] > 0,
        "the bound was lowered": second["memory"]["bound"] < options.global_batch // 2,
        "both ranks have the same parameters": first["memory"]["checksum"] == second["memory"]["checksum"],
        "NVML gives readings": bool(first["nvml"]),
    }
    for name, good in checks.items():
        print(f"{'ok  ' if good else 'FAIL'} {name}")
    return not all(checks.values())


if __name__ == "__main__":
    main()
