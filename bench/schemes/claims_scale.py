"""Claims at 8, 96 and 1,000 ranks: the library's own cuts, claims and manager on a virtual clock.

The store answers one request after the other, each --service-us after the one before at the earliest and --latency-us
after it was asked (both measured by --measure-store), so the table shows where the one counter becomes the limit.
Slowdown is the mean iteration time over that of an oracle who knows every speed change within the iteration.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from bench.schemes import loads
from bench.schemes.clock import Clock
from bench.schemes.speeds import Schedule
from lbbsp.core.bounds import Bounds
from lbbsp.core.manager import BatchSizeManager, JobSpec
from lbbsp.core.parts import WHOLE_PPM, planned_parts
from lbbsp.worker.claiming import Chunking, Claims
from lbbsp.worker.micro import MicroCost

NOMINAL_S, PER_RANK = 0.130, 32
"""An equal share takes an undisturbed rank so long; samples of it."""
FIXED, CHUNK = 1.5, 0.5
"""Work of an iteration, and of each micro-batch, beside its samples, in samples."""
RATE = (PER_RANK + FIXED + CHUNK) / NOMINAL_S
SKIPPED = 30
"""Iterations before those that count."""


class Store:
    """One server, first come, first served."""

    def __init__(self, clock: Clock, latency_s: float, service_s: float) -> None:
        self._clock, self._latency_s, self._service_s = clock, latency_s, service_s
        self._free_s = self.busy_s = 0.0
        self.sum = self.asked = 0
        self.answer_s = 0.0
        self.waits_s: list[float] = []

    def add(self, units: int) -> int:
        """As TCPStore.add; the answer is there at answer_s."""
        now_s = self._clock.now_s
        self._free_s = max(self._free_s, now_s + self._latency_s / 2) + self._service_s
        self.answer_s = self._free_s + self._latency_s / 2
        self.waits_s.append(self.answer_s - now_s)
        self.busy_s += self._service_s
        self.sum += units
        self.asked += units > 0
        return self.sum

    def later(self, call: Callable[[], Any], delay_s: float) -> Callable[[], Any]:
        """Not used here."""
        raise NotImplementedError


class Job:
    """One scheme: equal, lbbsp, or claims."""

    def __init__(self, scheme: str, speeds: Schedule, store_s: tuple[float, float], predictor: str) -> None:
        ranks = speeds.workers
        bounds = Bounds(PER_RANK * ranks, np.ones(ranks, dtype=np.int64), np.full(ranks, PER_RANK * ranks))
        claims = scheme if scheme in ("on", "auto") else "off"
        self._manager = BatchSizeManager(JobSpec(bounds, claims=claims), predictor, observe_only=scheme == "equal")
        self.clock, self._speeds, self._ranks = Clock(), speeds, ranks
        self.store = Store(self.clock, *store_s)
        self._sizes, self._beta, self._chunk = bounds.equal(), 1.0, 0
        self.betas: list[float] = []
        self._costs = [MicroCost() for _ in range(ranks)]

    def iterate(self, number: int) -> tuple[float, float]:
        """One iteration; its time and the oracle's."""
        start_s = self.clock.now_s
        parts = planned_parts(self._sizes, round(WHOLE_PPM * self._beta), 1)
        units = int(self._sizes.sum() - parts.sum())
        self._worked, self._own_s = parts.copy(), np.zeros(self._ranks)
        self.store.sum = 0
        self.betas.append(self._beta)
        for rank in range(self._ranks):
            share = float(max(1, self._sizes[rank]) / self._sizes.sum())
            least = max(1, round((self._chunk or 1) * share * self._ranks))
            claims = Claims(self.store, Chunking(units, self._ranks, share, least))
            self._work(rank, int(parts[rank]), FIXED, claims, start_s)
        while self.clock.step():
            pass
        took_s = self.clock.now_s - start_s
        self._report(number, parts)
        return took_s, self._oracle_s(start_s)

    def _work(self, rank: int, samples: int, fixed: float, claims: Claims, asked_s: float) -> None:
        start_s = max(asked_s, self.clock.now_s)
        middle_s = self._speeds.end_s(rank, start_s, fixed) if fixed else start_s
        end_s = self._speeds.end_s(rank, middle_s, samples + CHUNK)

        def ready() -> None:
            self._costs[rank].worked(samples, end_s - middle_s, start_s - asked_s)
            self._ready(rank, claims, end_s)

        self.clock.at(end_s, ready)

    def _ready(self, rank: int, claims: Claims, end_s: float) -> None:
        began_s = self._began_s
        self._own_s[rank] = end_s - began_s
        claim = claims.next()
        if claim is None:
            return
        samples = claim[1] - claim[0]
        self._worked[rank] += samples
        self.clock.at(self.store.answer_s, lambda: self._work(rank, samples, 0.0, claims, end_s))

    @property
    def _began_s(self) -> float:
        return self._iteration_began_s

    def run(self, iterations: int) -> dict[str, float]:
        """Figures over the iterations after the first ones."""
        took, best = [], []
        for number in range(iterations + SKIPPED):
            self._iteration_began_s = self.clock.now_s
            if number == SKIPPED:
                self.store.waits_s.clear()
                self.store.busy_s, self.store.asked, began_s = 0.0, 0, self.clock.now_s
            a, b = self.iterate(number)
            took.append(a)
            best.append(b)
        waits_s = self.store.waits_s or [0.0]
        return {
            "iteration_ms": 1e3 * float(np.mean(took[SKIPPED:])),
            "slowdown": float(np.mean(took[SKIPPED:]) / np.mean(best[SKIPPED:])),
            "claims_a_rank": self.store.asked / iterations / self._ranks,
            "claim_ms_p99": 1e3 * float(np.quantile(waits_s, 0.99)),
            "store_busy_share": self.store.busy_s / (self.clock.now_s - began_s),
            "beta": float(np.mean(self.betas[SKIPPED:])),
        }

    def _report(self, number: int, parts: Any) -> None:
        made = None
        longest_s = float(self._own_s.max())
        claimed = self._worked - parts
        for rank in range(self._ranks):
            own_s = float(self._own_s[rank])
            self._costs[rank].end()
            made = self._manager.report(
                rank,
                number,
                int(self._worked[rank]),
                own_s,
                wait_s=longest_s - own_s,
                claimed=int(claimed[rank]),
                fixed_s=self._costs[rank].fixed_s,
            )
        assert made is not None
        self._sizes, self._beta, self._chunk = made.sizes, made.beta, made.chunk
        self._manager.catch_up()

    def _oracle_s(self, start_s: float) -> float:
        """Least time in which all ranks together do the iteration's work, by bisection."""
        wanted = (PER_RANK + FIXED + CHUNK) * self._ranks
        before = sum(self._speeds.done_by(rank, start_s) for rank in range(self._ranks))
        low_s, high_s = 0.0, self.clock.now_s - start_s
        for _ in range(20):
            middle_s = (low_s + high_s) / 2
            done = sum(self._speeds.done_by(rank, start_s + middle_s) for rank in range(self._ranks)) - before
            low_s, high_s = (low_s, middle_s) if done >= wanted else (middle_s, high_s)
        return high_s


def measured_store() -> tuple[float, float]:
    """Latency of TCPStore.add from one client, and time an add where two clients ask at once; seconds."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    latency_s = _asked(store.port, 3000)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.starmap(_asked, [(store.port, 10)] * 2)
        began_s = time.perf_counter()
        pool.starmap(_asked, [(store.port, 5000)] * 2)
        return latency_s, (time.perf_counter() - began_s) / 10_000


def _asked(port: int, times: int) -> float:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore("127.0.0.1", port, is_master=False)
    spent_s = []
    for _ in range(times):
        began_s = time.perf_counter()
        store.add("claims", 1)
        spent_s.append(time.perf_counter() - began_s)
    return float(np.median(spent_s))


def main() -> None:
    """Simulate, print."""
    options = _options()
    if options.measure_store:
        latency_s, service_s = measured_store()
        print(
            f"TCPStore.add: latency {1e6 * latency_s:.0f} us, one of two clients served every {1e6 * service_s:.0f} us"
        )
        return
    store_s = (1e-6 * options.latency_us, 1e-6 * options.service_us)
    rows = []
    for load in options.loads:
        for ranks in options.ranks:
            for scheme in options.schemes:
                speeds = loads.LOADS[load](ranks, RATE, options.seed)
                found = Job(scheme, speeds, store_s, options.predictor).run(options.iterations)
                rows.append({"load": load, "ranks": ranks, "scheme": {"on": "claims"}.get(scheme, scheme), **found})
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"# python bench/schemes/claims_scale.py {' '.join(sys.argv[1:])}")
    print(
        "| load | ranks | scheme | iteration [ms] | slowdown | claims a rank | claim p99 [ms] | store busy | planned |"
    )
    print("|---|---:|---|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        cells = (
            f"| {row['load']} | {row['ranks']} | {row['scheme']} | {row['iteration_ms']:.0f} | {row['slowdown']:.2f} | "
            f"{row['claims_a_rank']:.1f} | {row['claim_ms_p99']:.2f} | {row['store_busy_share']:.0%} | "
        )
        print(f"{cells}{row['beta']:.2f} |")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 96, 1000])
    parser.add_argument("--loads", nargs="+", choices=sorted(loads.LOADS), default=["steady", "seconds", "bursts"])
    parser.add_argument(
        "--schemes", nargs="+", choices=["equal", "lbbsp", "on", "auto"], default=["equal", "lbbsp", "on"]
    )
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--predictor", default="last")
    parser.add_argument("--latency-us", type=float, default=100.0)
    parser.add_argument("--service-us", type=float, default=20.0)
    parser.add_argument("--measure-store", action="store_true", help="measure TCPStore.add here and end")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
