"""How well and how soon slow ranks are found, by detector: injected slowdowns, in simulation, on recordings, for real.

Simulated jobs of 8 ranks (own time = (theta + samples) / speed, noise, a spike now and then) run with equal sizes and
with those of BatchSizeManager. Recall: an injected rank is flagged within 10 iterations of being 1.5 times slower or
more. Precision: share of flags that fall on a rank that is slower (1.1 times or more, or was within 12 iterations).
`assumes equal work:` is the same threshold on plain own times. --real adds real ranks (bench/detectors_real.py).
"""

import argparse
import json
import sys
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from lbbsp import recording
from lbbsp.core.detectors import DETECTORS
from lbbsp.core.manager import BatchSizeManager, JobSpec
from lbbsp.core.sizing import Bounds
from lbbsp.core.stragglers import DEFAULT, Stragglers

RANKS, ONSET, LENGTH, ITERATIONS = 8, 100, 100, 260
WITHIN, LINGER = 10, 12
MOST = 400
"""Iterations of a recording that are used."""
NAMES = tuple(DETECTORS)
BASELINE = "assumes equal work: threshold"
SENSORS = ("cpu_busy_share", "own_cpu_cores", "preemptions_per_s", "psi_io_share")
CALM = np.array([0.95, 0.9, 3.0, 0.0])
CAUSES = {
    "neighbour": "neighbour on its cores",
    "loader": "slow input",
    "sleep": "waits inside its step",
    "drift": "heat or clocks",
    "data": "costlier samples",
}


@dataclass
class Tally:
    """What one detector found."""

    hits: int = 0
    wanted: int = 0
    right: int = 0
    flags: int = 0
    delays: list[int] = field(default_factory=list)

    def row(self) -> dict[str, float | None]:
        """Recall, precision and median delay."""
        return {
            "precision": round(self.right / self.flags, 3) if self.flags else None,
            "recall": round(self.hits / self.wanted, 3) if self.wanted else None,
            "delay_iterations": float(np.median(self.delays)) if self.delays else None,
        }

    def score(self, flags: np.ndarray, slowness: np.ndarray) -> None:
        """Flags and true slowness, (iterations, ranks)."""
        for rank in range(flags.shape[1]):
            raised = np.flatnonzero(np.diff(flags[:, rank], prepend=False) & flags[:, rank])
            slow = slowness[:, rank] >= 1.1
            self.flags += len(raised)
            self.right += sum(bool(slow[max(0, k - LINGER) : k + 1].any()) for k in raised)
            bad = np.flatnonzero(slowness[:, rank] >= 1.499)
            if len(bad):
                self.wanted += 1
                found = np.flatnonzero(flags[bad[0] : bad[0] + WITHIN + 1, rank])
                self.hits += bool(len(found))
                self.delays += [int(found[0])] if len(found) else []


def slowness(case: str, factor: float, iterations: int = ITERATIONS, ranks: int = RANKS) -> np.ndarray:
    """True slowness, (iterations, ranks); rank 2 is the slow one."""
    slow = np.ones((iterations, ranks))
    if case in ("twice", "calm"):
        return slow
    ramp = np.linspace(0, 1, LENGTH) if case == "drift" else np.ones(LENGTH)
    slow[ONSET : ONSET + LENGTH, 2] += ramp * (factor - 1.0)
    return slow


def readings(case: str, slow: np.ndarray, k: int) -> np.ndarray:
    """What sensors would say: every tenth iteration, averages; the neighbour and the sleep take processor time."""
    if k % 10:
        return np.full((len(slow), len(SENSORS)), np.nan)
    rows = np.tile(CALM, (len(slow), 1))
    got = np.where(slow > 1.05, 1.0 / slow, 1.0)
    if case in ("neighbour", "sleep", "loader"):
        rows[:, 1] *= got
    if case == "neighbour":
        rows[:, 0] = np.where(slow > 1.05, 1.0, rows[:, 0])
    if case in ("sleep", "loader"):
        rows[:, 0] *= got
    return rows


def simulate(case: str, factor: float, balanced: bool, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray, str]:
    """Flags by detector, true slowness, the cause named at the end of the slowdown."""
    rng = np.random.default_rng(seed)
    spec = JobSpec(Bounds(64 * RANKS, np.ones(RANKS), np.full(RANKS, 64 * RANKS)), sensors=SENSORS)
    manager = BatchSizeManager(spec, observe_only=not balanced)
    watcher, naive = Stragglers(RANKS, SENSORS, NAMES), Stragglers(RANKS, (), ("threshold",))
    theta, speed = rng.uniform(0, 30, RANKS), 640 * rng.uniform(0.9, 1.1, RANKS)
    slow, sizes, cause = slowness(case, factor), spec.bounds.equal(), ""
    shares: deque[np.ndarray] = deque(maxlen=10)
    flags: dict[str, list[np.ndarray]] = {name: [] for name in (*NAMES, BASELINE)}
    default = Stragglers(RANKS, SENSORS)
    for k in range(ITERATIONS):
        x = _twice(sizes) if case == "twice" and ONSET <= k < ONSET + LENGTH else sizes
        spikes = np.where(rng.random(RANKS) < 0.01, rng.uniform(1.5, 4.0, RANKS), 1.0)
        own_s = (theta + x) / speed * slow[k] * np.exp(0.04 * rng.standard_normal(RANKS)) * spikes
        added_s = own_s * (1.0 - 1.0 / slow[k])
        rows = readings(case, slow[k], k)
        shares.append(own_s / own_s.max())
        rows[:, 1] *= np.mean(shares, axis=0)  # processor time is read over whole iterations, waits included
        for rank in range(RANKS):
            wait_s = float(own_s.max() - own_s[rank])
            made = manager.report(rank, k, int(x[rank]), float(own_s[rank]), wait_s=wait_s, sensors=rows[rank])
        input_s = 0.001 + (added_s if case == "loader" else 0.0)
        cost = np.full(RANKS, 100.0) * (slow[k] if case == "data" else 1.0)
        seen = manager.sight(input_s, cost)
        watcher.see(seen)
        default.see(seen)
        naive.see(replace(seen, reference_s=seen.time_s))
        for name in NAMES:
            flags[name].append(watcher.flags(name).copy())
        flags[BASELINE].append(naive.flags("threshold").copy())
        if k == ONSET + LENGTH - 1 and 2 in default.flagged:
            cause = default.flagged[2].diagnosis.cause.value
        sizes = made.sizes
    return {name: np.array(rows) for name, rows in flags.items()}, slow, cause


def _twice(sizes: np.ndarray) -> np.ndarray:
    """Rank 5 gets as much as two; the others give it."""
    others = np.full(RANKS, (64 * RANKS - 128) // (RANKS - 1))
    others[5] = 64 * RANKS - int(others.sum() - others[5])
    return others


def on_recording(path: Path, factor: float, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Flags by detector on recorded times with one worker slowed, which are not touched otherwise."""
    job = recording.read(path)
    iterations, ranks = min(MOST, len(job.own_time_s)), len(job.workers)
    slow = np.ones((iterations, ranks))
    begin, rank = iterations // 2, seed % ranks
    slow[begin : begin + 60, rank] = factor
    spec = JobSpec(Bounds(10_000 * ranks, np.ones(ranks), np.full(ranks, 10_000 * ranks)))
    manager, watcher = BatchSizeManager(spec), Stragglers(ranks, (), NAMES)
    flags: dict[str, list[np.ndarray]] = {name: [] for name in NAMES}
    for k in range(iterations):
        for worker in np.flatnonzero(np.isfinite(job.own_time_s[k])).tolist():
            samples = max(1, int(job.samples[k, worker]))
            manager.report(worker, k, samples, float(job.own_time_s[k, worker] * slow[k, worker]))
        seen = manager.sight()
        if seen is not None and seen.iteration > watcher.iteration:
            watcher.see(seen)
        for name in NAMES:
            flags[name].append(watcher.flags(name).copy())
    return {name: np.array(rows) for name, rows in flags.items()}, slow


def simulated(seeds: int) -> dict[str, object]:
    """All cases with both kinds of sizes."""
    tallies = {name: Tally() for name in (*NAMES, BASELINE)}
    by_sizes = {sizes: {name: Tally() for name in tallies} for sizes in ("equal", "lbbsp")}
    twice, causes = dict.fromkeys(tallies, 0), []
    for case in (*CAUSES, "twice", "calm"):
        for factor in (1.5, 2.0, 3.0) if case in CAUSES else (1.0,):
            for seed in range(seeds):
                for sizes in by_sizes:
                    end = max(factor, 1.7) if case == "drift" else factor
                    flags, slow, cause = simulate(case, end, sizes == "lbbsp", seed)
                    for name, raised in flags.items():
                        tallies[name].score(raised, slow)
                        by_sizes[sizes][name].score(raised, slow)
                        during = raised[ONSET - 1 : ONSET + LENGTH, 5]
                        twice[name] += int((during[1:] & ~during[:-1]).any()) if case == "twice" else 0
                    causes += [(case, cause)] if case in CAUSES else []
    right = [cause == CAUSES[case] for case, cause in causes]
    wrong = {f"{case}: {cause or 'not flagged'}" for case, cause in causes if cause != CAUSES[case]}
    return {
        "detectors": {name: tally.row() for name, tally in tallies.items()},
        "by_sizes": {s: {name: tally.row() for name, tally in rows.items()} for s, rows in by_sizes.items()},
        "flagged_rank_given_twice": twice,
        "cause_accuracy": round(float(np.mean(right)), 3),
        "wrong_causes": sorted(wrong),
    }


def recorded(paths: list[Path]) -> dict[str, object]:
    """Each recording, a few workers slowed in turn."""
    found = {}
    for path in paths:
        tallies = {name: Tally() for name in NAMES}
        for factor in (1.5, 2.0, 3.0):
            for seed in range(4):
                flags, slow = on_recording(path, factor, seed)
                for name in NAMES:
                    tallies[name].score(flags[name], slow)
        found[path.name] = {name: tally.row() for name, tally in tallies.items()}
    return found


def table(title: str, rows: dict[str, dict[str, float | None]]) -> None:
    """Print one table."""
    print(f"\n{title}\n{'detector':32} {'precision':>9} {'recall':>7} {'delay (iterations)':>19}")
    for name, row in rows.items():
        cells = ["-" if row[key] is None else f"{row[key]:.3g}" for key in ("precision", "recall", "delay_iterations")]
        print(f"{name:32} {cells[0]:>9} {cells[1]:>7} {cells[2]:>19}")


def main() -> None:
    """Run what was asked for, print tables, write figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4, help="runs of each simulated case")
    parser.add_argument("--recording", type=Path, nargs="*", default=[], metavar="FILE.csv.gz")
    parser.add_argument("--real", type=int, default=0, metavar="REPEATS", help="runs of each cause at real workers")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    print(f"# python bench/detectors.py {' '.join(sys.argv[1:])}   (default detectors: {', '.join(DEFAULT)})")
    found = simulated(options.seeds)
    table("simulated", found["detectors"])
    for sizes, rows in found["by_sizes"].items():
        table(f"simulated, {sizes} sizes", rows)
    print("\nflagged the rank given twice:", found["flagged_rank_given_twice"])
    print("cause accuracy, simulated:", found["cause_accuracy"], found["wrong_causes"])
    recordings = recorded(options.recording)
    for name, rows in recordings.items():
        table(f"recording {name}", rows)
    result = {
        **found["detectors"],
        "cause_accuracy": found["cause_accuracy"],
        "simulated": found,
        "recorded": recordings,
    }
    if options.real:
        import detectors_real

        result["real"] = real = detectors_real.run(options.real)
        table("real workers", real["detectors"])
        print("flagged the rank given twice:", real["flagged_rank_given_twice"], "silent after", real["silent_s"], "s")
        print("cause accuracy, real workers:", real["cause_accuracy"], "detail:", real["causes"])
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
