"""What chunks cost a loader: throughput where reading is the limit, and the price of joining chunks.

Throughput: two real ranks, 20 ms a sample (asleep), num_workers=2; balance() with chunks beside the stock DataLoader,
in turn. Joining: one batch of 64 as two chunks, collated apart, cut and joined, beside the stock collate function.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import workers
from torch.utils.data import DataLoader, default_collate
from torch.utils.data.distributed import DistributedSampler

from lbbsp.adapters.pytorch import balance
from lbbsp.adapters.pytorch.joining import Collated

SAMPLE_S = 0.02
BATCH = 16
JOINED = 64
SHAPES = {"images 3x224x224": (3, 224, 224), "token ids 512": (512,)}


def worker(arguments: argparse.Namespace) -> None:
    """One rank: epochs of both loaders in turn."""
    rank = workers.join()
    ddp = workers.model(channels=2)
    data = workers.Images(2 * BATCH * arguments.iterations, sleep_s=SAMPLE_S)

    def loader() -> "DataLoader[Any]":
        return DataLoader(data, BATCH, sampler=DistributedSampler(data), num_workers=2, prefetch_factor=4)

    stock = loader()
    ddp, chunks = balance(ddp, loader(), chunks="on")
    rates: dict[str, list[float]] = {"stock": [], "chunks": []}
    for _ in range(arguments.repeats):
        rates["stock"].append(_rate(workers.model(channels=2), stock))
        rates["chunks"].append(_rate(ddp, chunks))
    if rank == 0:
        workers.write(arguments.out, rates)
    chunks.balancer.close()
    workers.leave()


def _rate(ddp: Any, loader: Any) -> float:
    """Samples a second of this rank, without the first quarter of the epoch."""
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    torch.distributed.barrier()
    samples, began_s, skipped = 0, 0.0, len(loader) // 4
    for number, batch in enumerate(loader):
        workers.train(ddp, batch, optimizer)
        if number == skipped:
            samples, began_s = 0, time.perf_counter()
        else:
            samples += len(batch[0])
    return samples / (time.perf_counter() - began_s)


def joining_ms(shape: tuple[int, ...], repeats: int = 15) -> dict[str, float]:
    """Milliseconds in the training thread: joining two chunks; and the stock collate, as num_workers=0 pays it."""
    samples = [(torch.zeros(shape), 0) for _ in range(JOINED)]
    joining = Collated()
    halves = [joining.pack(samples[: JOINED // 2]), joining.pack(samples[JOINED // 2 :])]
    cuts = [joining.cut(half, 0, JOINED // 2 - 1) for half in halves]
    return {
        "join": _median_ms(lambda: joining.join(cuts), repeats),
        "collate": _median_ms(lambda: default_collate(samples), repeats),
    }


def _median_ms(call: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - began_s))
    return statistics.median(times)


def main() -> None:
    """Measure both and print one table."""
    parser = workers.options(__doc__)
    parser.add_argument("--iterations", type=int, default=32, help="of each epoch")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments)
        return
    torch.set_num_threads(1)
    counts = ["--iterations", str(arguments.iterations), "--repeats", str(arguments.repeats)]
    rates = workers.found(__file__, 2, counts, 600)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    result = {"samples_per_s": medians, "throughput_ratio": medians["chunks"] / medians["stock"]}
    result |= {f"joining_ms {name}": joining_ms(shape) for name, shape in SHAPES.items()}
    for name, value in result.items():
        print(name, value)
    workers.keep(arguments.json, result)


if __name__ == "__main__":
    main()
