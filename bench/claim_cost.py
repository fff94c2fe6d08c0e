"""What claims cost where nothing is gained: 2 equal ranks, a core each, no neighbours, cuts forced, not decided.

Blocks of one run alternate between iterations that are planned whole and those of which a part is claimed, with chunks
so small that a rank works several micro-batches. `claim` is the time that the training thread needs to get a claim and
to find its positions, as a share of the iteration (an answer that is there when wanted costs no wait); `asked` how
long the store took, whichever thread asked; `iteration` compares iteration times, so it holds what small batches and
one reduction at the end cost as well.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import workers
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from lbbsp.adapters.pytorch import balance
from lbbsp.core.parts import WHOLE_PPM
from lbbsp.worker.claiming import Claims
from lbbsp.worker.pool import PoolCursor

BLOCK, WARM_UP_BLOCKS = 8, 2


class Forced:
    """Stands before a rank's channel: the manager's sizes, our cuts."""

    def __init__(self, balancer: Any) -> None:
        self.beta_ppm, self.chunk = WHOLE_PPM, 0
        self._channel = balancer.follower.channel
        balancer.follower.channel = self

    def vector(self, *arguments: Any, **named: Any) -> Any:
        """As it came, cut our way."""
        vector, places = self._channel.vector(*arguments, **named)
        return replace(vector, beta_ppm=self.beta_ppm, chunk=self.chunk), places

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


class Stopwatch:
    """Times calls of a function."""

    def __init__(self, owner: Any, name: str) -> None:
        self.times_s: list[float] = []
        inner = getattr(owner, name)

        def timed(*arguments: Any) -> Any:
            began_s = time.perf_counter()
            try:
                return inner(*arguments)
            finally:
                self.times_s.append(time.perf_counter() - began_s)

        setattr(owner, name, timed)


def worker(arguments: argparse.Namespace) -> None:
    """One rank: one job, blocks in turn."""
    rank = workers.join()
    data = workers.Images(10_000 * arguments.batch)
    loader: Any = DataLoader(data, arguments.batch, sampler=DistributedSampler(data, shuffle=False))
    ddp, loader = balance(workers.model(), loader, mode="observe", claims=True)
    forced = Forced(loader.balancer)
    asked, reduced = Stopwatch(loader.counters, "add"), Stopwatch(loader.accumulation, "reduce")
    claimed, found = Stopwatch(Claims, "next"), Stopwatch(PoolCursor, "claimed")
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    iterations = iter(loader)
    times: dict[str, list[float]] = {"planned": [], "claimed": []}
    counts: list[int] = []
    for block in range(2 * (arguments.blocks + WARM_UP_BLOCKS)):
        kind = ("planned", "claimed")[block % 2]
        forced.beta_ppm = WHOLE_PPM if kind == "planned" else round(arguments.beta * WHOLE_PPM)
        forced.chunk = max(1, arguments.batch // arguments.chunks)
        marks, micro_batches = [time.perf_counter()], []
        for _ in range(BLOCK):
            micro_batches.append(_step(ddp, optimizer, next(iterations)))
            marks.append(time.perf_counter())
        if block == 2 * WARM_UP_BLOCKS - 1:
            for watch in (asked, reduced, claimed, found):
                watch.times_s.clear()
        elif block >= 2 * WARM_UP_BLOCKS:
            times[kind] += np.diff(marks)[1:].tolist()
            counts += micro_batches[1:] if kind == "claimed" else []
    mine = {"times": times, "counts": counts, "asked_s": asked.times_s, "reduced_s": reduced.times_s}
    mine |= {"claimed_s": claimed.times_s, "found_s": found.times_s, "fixed_s": loader.micro.fixed_s}
    everything = workers.gather(mine)
    if rank == 0:
        workers.write(arguments.out, everything)
    loader.balancer.close()
    workers.leave()


def _step(ddp: Any, optimizer: Any, chunks: Any) -> int:
    count = 0
    for images, labels in chunks:
        torch.nn.functional.cross_entropy(ddp(images), labels).backward()
        count += 1
    optimizer.step()
    optimizer.zero_grad()
    return count


def summary(ranks: list[dict[str, Any]]) -> dict[str, float]:
    """Figures of one run; shares of an iteration of which a part is claimed."""
    planned, claimed = (statistics.median(ranks[0]["times"][kind]) for kind in ("planned", "claimed"))
    iterations = len(ranks[0]["times"]["claimed"]) * BLOCK / (BLOCK - 1)
    asked, each = (np.concatenate([rank[name] for rank in ranks]) for name in ("asked_s", "claimed_s"))
    a_rank = sum(sum(rank["claimed_s"]) + sum(rank["found_s"]) for rank in ranks) / len(ranks) / iterations
    return {
        "planned_ms": 1e3 * planned,
        "claimed_ms": 1e3 * claimed,
        "iteration_percent": 100 * (claimed / planned - 1),
        "micro_batches": statistics.mean(statistics.mean(rank["counts"]) for rank in ranks),
        "claim_us_median": 1e6 * float(np.median(each)),
        "claim_us_p99": 1e6 * float(np.quantile(each, 0.99)),
        "asked_us_median": 1e6 * float(np.median(asked)),
        "fixed_us": 1e6 * statistics.mean(rank["fixed_s"] for rank in ranks),
        "claim_percent": 100 * a_rank / claimed,
        "least_reduction_ms": 1e3 * statistics.median(np.min([rank["reduced_s"] for rank in ranks], axis=0)),
    }


def main() -> None:
    """Launch, sum up, print."""
    arguments = _options()
    if arguments.worker:
        worker(arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "out.json")
        passed = [f"--{name}={getattr(arguments, name)}" for name in ("batch", "beta", "chunks", "blocks")]
        workers.launch(__file__, 2, [*passed, f"--out={out}"], timeout_s=900)
        found = summary(json.loads(Path(out).read_text()))
    if arguments.json:
        print(json.dumps(found, indent=1))
        return
    print(f"# python bench/claim_cost.py {' '.join(sys.argv[1:])}")
    print("| " + " | ".join(found) + " |\n|" + "---:|" * len(found))
    print("| " + " | ".join(f"{value:.3g}" for value in found.values()) + " |")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--batch", type=int, default=704, help="samples a rank")
    parser.add_argument("--beta", type=float, default=0.4, help="planned share")
    parser.add_argument("--chunks", type=int, default=40, help="least chunks in a rank's share")
    parser.add_argument("--blocks", type=int, default=8, help=f"of {BLOCK} iterations, of each kind")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
