"""What detectors of slow ranks cost a manager: two real managers, with and without, fed in turn with the same reports.

Ranks are sockets of this process. In each round both managers get one iteration: its reports within a window, as
bench/scale.py sends them, sensors in each tenth. CPU is that of the manager's process, all threads, from one iteration
to its next, what it does after the plan included. `more_percent`: of the mean with detectors over that without;
`low`, `high`: a 95 % interval of it, rounds drawn again and again (bootstrap). `calm`: nobody is slow; with --slow some
ranks are from the middle on.
"""

import argparse
import json
import resource
import time
from typing import Any

import msgspec
import numpy as np
from scale import SAMPLES, Load, Manager, Ranks, _sleep_until, hello

from lbbsp.protocol import Hello, Report, encode
from lbbsp.worker.sensors import machine_sources

WARM_UP = 20
SENSORS_EVERY = 10
NAMES = tuple(name for source in machine_sources() for name in source.names)


class Side:
    """A manager and its ranks."""

    def __init__(self, load: Load, detectors: str) -> None:
        self.load, self.manager = load, Manager("--detectors", detectors)
        self._clock = (~self.manager.process.pid << 3) | 2  # the CPU clock of a process, as clock_getcpuclockid has it
        self.ranks = Ranks(self.manager.address, load, range(load.ranks), with_sensors)
        self._before_s = self.cpu_s()
        self.spent_s: list[float] = []

    def cpu_s(self) -> float:
        """CPU time of the manager so far."""
        return time.clock_gettime(self._clock)

    def iterate(self, reports: list[bytes], spread_s: float) -> None:
        """Account for what the iteration before took, and send the next one."""
        now_s = self.cpu_s()
        self.spent_s.append(now_s - self._before_s)
        self._before_s = now_s
        begin_s, gap_s = time.perf_counter(), spread_s / len(reports)
        for place, frame in enumerate(reports):
            if spread_s:
                _sleep_until(begin_s + place * gap_s)
            self.ranks.send(place, frame)
        self.ranks.plan(len(self.spent_s) - 1)

    def stop(self) -> None:
        """End both."""
        self.ranks.close()
        self.manager.stop()


def with_sensors(load: Load, rank: int) -> Hello:
    """The first word of a rank as real ones say it."""
    return msgspec.structs.replace(hello(load, rank), sensors=NAMES)


def frames(load: Load, iteration: int, slow: np.ndarray, rng: np.random.Generator) -> list[bytes]:
    """One iteration's reports, in order of rank."""
    own_s = load.period_s * 0.5 * slow * rng.lognormal(0.0, 0.03, load.ranks)
    wait_s = own_s.max() - own_s
    sensors = rng.uniform(0, 1, (load.ranks, len(NAMES))) if iteration % SENSORS_EVERY == 0 else None
    return [
        encode(
            Report(
                job=load.name, incarnation="i", rank=rank, iteration=iteration, samples=SAMPLES,
                own_time_s=float(own_s[rank]), wait_s=float(wait_s[rank]), input_s=0.1 * float(own_s[rank]),
                sensors=() if sensors is None else tuple(sensors[rank].tolist()),
            )
        )
        for rank in range(load.ranks)
    ]  # fmt: skip


def run(ranks: int, rounds: int, spread_s: float, slow_ranks: int, detectors: str) -> dict[str, Any]:
    """All rounds, in turn the one first and the other."""
    load = Load("job", ranks, rounds, 2 * max(spread_s, 0.05), spread_s)
    sides = [Side(load, detectors), Side(load, "none")]
    rng, slow = np.random.default_rng(0), np.ones(ranks)
    for iteration in range(WARM_UP + rounds + 1):
        if iteration == WARM_UP + rounds // 2:
            slow[:slow_ranks] = 2.0
        reports = frames(load, iteration, slow, rng)
        for side in sides if iteration % 2 else sides[::-1]:
            side.iterate(reports, spread_s)
            time.sleep(0.02)
    for side in sides:
        side.stop()
    with_, without = (np.array(side.spent_s[WARM_UP + 1 :]) for side in sides)
    return {"ranks": ranks, "with_ms": _ms(with_), "without_ms": _ms(without)} | _more(with_, without)


def _ms(spent_s: np.ndarray) -> float:
    return round(1e3 * float(spent_s.mean()), 3)


def _more(with_: np.ndarray, without: np.ndarray) -> dict[str, float]:
    drawn = np.random.default_rng(0).integers(0, len(with_), (2000, len(with_)))
    again = 100 * (with_[drawn].mean(axis=1) / without[drawn].mean(axis=1) - 1)
    low, high = np.quantile(again, (0.025, 0.975))
    more = 100 * (with_.mean() / without.mean() - 1)
    return {"more_percent": round(float(more), 2), "low": round(float(low), 2), "high": round(float(high), 2)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=200, help="0.25 s each at 1,000 ranks")
    parser.add_argument("--spread", type=float, default=0.1, help="seconds over which an iteration's reports come")
    parser.add_argument("--slow", type=int, default=0, help="ranks that become slow half-way")
    parser.add_argument("--detectors", default="history", help="as lbbsp manager takes them")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found = run(options.ranks, options.rounds, options.spread, options.slow, options.detectors)
    print(found)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=2)


if __name__ == "__main__":
    main()
