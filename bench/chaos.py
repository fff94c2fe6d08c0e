"""Real training under random faults, counted along the path of the final weights; seeded.

Each schedule is a job of two ranks under torchrun with a manager of its own behind a link of ours. Befall it: the
manager killed and started again with its journal, stopped, or not there at first; ranks stopped, or killed and started
again by torchrun, going on from the loop's checkpoint; the link cut, reset, held (both ways, one way), half-open, late
or slow. One schedule in 25 goes through 5.5 to 8 s of silence; in one of 4, reports and plans go past the link, as on
one machine. Some jobs claim, accumulate, or have loader workers.

lost, repeated: samples of an epoch. unequal_plans: iterations whose sizes differ between ranks or do not give out the
whole batch. hangs: schedules that did not end in time. wrong_gradients: iterations whose gradient is not, to 1e-9, that
of one process fed whole global batches. failures: jobs that ended with an error, managers that ended by themselves.
quiet_steps: those begun while nothing was wrong, and nothing had been for 1 s; offered_share: of these, those with a
plan of the manager's; adopted_share: of the plans offered in such times, those that came into force; both of what goes
over the link.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

for folder in ("service", "pytorch", "worker"):
    sys.path.append(str(Path(__file__).parents[1] / "tests" / folder))

import torchrun  # noqa: E402
from chaos_faults import Hit, Injector, Schedule, quiet, started  # noqa: E402
from chaos_path import Life, judge, lives  # noqa: E402
from proxy import Proxy  # noqa: E402

from lbbsp.protocol import Plan  # noqa: E402

JOB = Path(__file__).with_name("chaos_job.py")
SPARE_RESTARTS = 3
"""Beyond the kills: a start may fail by itself where processes go while they connect."""


@dataclass
class Played:
    """What came of one schedule."""

    seed: int
    counts: Counter[str]
    kinds: Counter[str] = field(default_factory=Counter)
    took_s: float = 0.0
    trouble: str = ""
    """The log's end, where it hung or failed."""


def agent(schedule: Schedule, folder: Path, manager: str) -> Any:
    """A job of two ranks under torchrun, begun."""
    kills = sum(fault.kind == "rank_kill" for fault in schedule.faults)
    options = [
        "--nproc-per-node=2", f"--max-restarts={kills + SPARE_RESTARTS}", f"--rdzv-id=chaos-{schedule.program.seed}",
        "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0",
    ]  # fmt: skip
    arguments = [str(folder / "rows"), schedule.program.text()]
    environment = {"LBBSP_STATE_DIR": str(folder / "cache"), "LBBSP_MANAGER": manager}
    return torchrun.started(options, JOB, arguments, environment, folder / "log")


def play(seed: int, timeout_s: float) -> Played:
    """One schedule."""
    schedule = Schedule.of(seed)
    began_s = time.perf_counter()
    offered: list[tuple[float, Plan]] = []
    with tempfile.TemporaryDirectory(prefix="lbbsp-chaos-") as name:
        folder = Path(name)
        (folder / "rows").mkdir()
        manager = started(folder, schedule.lane)
        port = int(manager.address.rpartition(":")[2])
        with Proxy(port, lambda at_s, message: _note(offered, at_s, message)) as link:
            injector = Injector(schedule, folder, link, manager)
            process = agent(schedule, folder, link.address)
            try:
                hung = not follow(process, injector, folder, began_s + timeout_s)
                trouble = _stacks(process, folder) if hung else ""
            finally:
                _end(process)
                injector.join()
        found = lives(folder / "rows")
        effective = Counter(hit.kind for hit in injector.hits if hit.effective)
        played = Played(seed, judge(schedule.program, found), effective)
        failed = not hung and process.exitcode != 0
        played.counts.update(
            schedules=1, hangs=hung, failures=failed + injector.failures, faults_effective=effective.total(),
            restarts=max((life.restart for life in found), default=0),
        )  # fmt: skip
        if not schedule.lane:
            played.counts.update(adoption(offered, found, injector.hits))
        if any(played.counts[bad] for bad in BAD):
            played.trouble = trouble + _tail(folder / "log") + _tail(folder / "manager.log")
    played.took_s = time.perf_counter() - began_s
    return played


def _note(offered: list[tuple[float, Plan]], at_s: float, message: Any) -> None:
    if isinstance(message, Plan):
        offered.append((at_s, message))


def adoption(offered: list[tuple[float, Plan]], found: list[Life], hits: list[Hit]) -> Counter[str]:
    """Plans offered while nothing was wrong to a loop that went on to another draw, and those that came into force."""
    first = [life for life in found if life.rank == 0 and life.draws]
    last_s = {life.incarnation: max(row["at_s"] for row in life.draws.values()) for life in first}
    adopted = {(life.incarnation, row["based_on"]) for life in first for row in life.draws.values()}
    steps = [row["at_s"] for life in first for (_, draw), row in life.draws.items() if draw == 0]
    counts = Counter({"quiet_steps": sum(quiet(at_s, hits) for at_s in steps), "offered": 0, "adopted": 0})
    for at_s, plan in offered:
        if quiet(at_s, hits) and at_s < last_s.get(plan.incarnation, 0.0):
            counts["offered"] += 1
            counts["adopted"] += (plan.incarnation, plan.based_on_iteration) in adopted
    return counts


def follow(process: Any, injector: Injector, folder: Path, deadline_s: float) -> bool:
    """Let faults befall the job until it ends; False where it did not in time."""
    newest = -1
    while process.is_alive():
        if time.perf_counter() > deadline_s:
            return False
        for path in (folder / "rows").glob("*-0-*"):
            newest = max(newest, _step(path))
        injector.at(newest)
        process.join(0.01)
    return True


def _step(path: Path) -> int:
    """The newest that this file tells of."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 6000))
        lines = file.read().splitlines()
    steps = [json.loads(line).get("step", -1) for line in lines[-2:] if line.startswith(b"{") and line.endswith(b"}")]
    return max(steps, default=-1)


def _stacks(process: Any, folder: Path) -> str:
    """Where the ranks of a hung job are."""
    for child in psutil.Process(process.pid).children(recursive=True):
        child.send_signal(signal.SIGCONT)
        if child.cmdline() and "resource_tracker" not in " ".join(child.cmdline()):
            child.send_signal(signal.SIGUSR1)
    time.sleep(1.0)
    return f"hung; rows: {sorted(path.name for path in (folder / 'rows').iterdir())}\n"


def _end(process: Any) -> None:
    """Nothing of the job is left."""
    if process.is_alive():
        for child in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            child.kill()
    process.join()


def _tail(path: Path) -> str:
    return f"--- {path.name}\n{path.read_text()[-6000:]}\n" if path.exists() else ""


BAD = ("lost", "repeated", "unequal_plans", "hangs", "wrong_gradients", "failures")
SHOWN = (
    "schedules",
    "iterations",
    "plan_changes",
    "faults_effective",
    *BAD,
    "restarts",
    "quiet_steps",
    "offered",
    "adopted",
)


def chaos(seeds: list[int], timeout_s: float, at_once: int = 1, tell: Any = lambda played: None) -> dict[str, Any]:
    """All these schedules, so many at a time; their figures together."""
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    with ThreadPoolExecutor(at_once) as pool:
        for played in pool.map(lambda seed: play(seed, timeout_s), seeds):
            counts.update(played.counts)
            kinds.update(played.kinds)
            tell(played)
    shares = {
        "adopted_share": counts["adopted"] / max(1, counts["offered"]),
        "offered_share": counts["offered"] / max(1, counts["quiet_steps"]),
    }
    return {name: counts[name] for name in SHOWN} | shares | {"kinds": dict(sorted(kinds.items()))}


def _tell(played: Played) -> None:
    """One line a schedule."""
    shown = " ".join(f"{name}={played.counts[name]}" for name in SHOWN[1:])
    print(f"seed {played.seed}: {played.took_s:.1f} s {shown} {dict(played.kinds)}", flush=True)
    if played.trouble:
        print(played.trouble, file=sys.stderr, flush=True)


def main() -> None:
    """Play schedules, print the figures; exit 1 where a count is not 0 that must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the first; each one more for the next")
    parser.add_argument("--at-once", type=int, default=1, help="schedules at a time; shares are of one at a time")
    parser.add_argument("--timeout-s", type=float, default=60.0, help="a schedule that takes longer hangs")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left of the job under way
    seeds = list(range(arguments.seed, arguments.seed + arguments.schedules))
    result = chaos(seeds, arguments.timeout_s, arguments.at_once, _tell)
    for name, value in result.items():
        print(name, value)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(any(result[name] for name in BAD))


if __name__ == "__main__":
    main()
