"""A manager's journal killed at random points of its writing, then opened again: was what came up ever true?

A child serves two jobs in process, with the real table, keeper and journal, as fast as it can, and kills itself with
SIGKILL within a random system call of the journal's: after some bytes of a write, before or after a sync or a rename.
Reports follow from the iteration alone, so the parent knows every state that there ever was. Counted over all restarts:
states that never were, states older than what had been synced before, versions of plans that went back, refused files.
"""

import argparse
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lbbsp.errors import LbbspError
from lbbsp.protocol import Hello, Plan, Report
from lbbsp.protocol import encode as encode_message
from lbbsp.service import journal as journal_module
from lbbsp.service.job import sizer_maker
from lbbsp.service.journal import Journal
from lbbsp.service.journal_records import Learnt, Started, decode, encode
from lbbsp.service.keeper import Keeper, past_jobs
from lbbsp.service.table import JobTable

RANKS, X = 3, 300
JOBS = ("a", "b")
LASTS = 40
"""Iterations of an incarnation; then the job restarts."""
CALLS = ("write", "fdatasync", "fsync", "replace")
COMPACT_ABOVE_BYTES = 40_000
SYNCED = 0.1
"""How often the child waits until all is on the disk, of its iterations."""


class Served:
    """Two jobs at a table, driven iteration by iteration, the same every time."""

    def __init__(self, table: JobTable) -> None:
        self.table = table
        self.iteration = dict.fromkeys(JOBS, 0)
        self.versions: dict[str, int] = {}
        """Newest of each incarnation."""

    def step(self, job: str) -> Iterator[None]:
        """One iteration of one job, hellos first where an incarnation begins; stops where a state is whole."""
        number = self.iteration[job]
        if number % LASTS == 0:
            self.greet(job)
            yield
        for rank in range(RANKS):
            samples = 60 + 20 * rank + number % 7
            own_s = samples / (1000.0 * (1 + (rank + number // 10) % 3))
            self._say(
                Report(
                    job=job, incarnation=str(number // LASTS), rank=rank, iteration=number, samples=samples,
                    own_time_s=own_s,
                )
            )  # fmt: skip
        live = self.table.jobs[job].live
        if live is not None:
            live.sizer.catch_up()  # each time, so that a state does not depend on when it was told
        self.iteration[job] = number + 1
        yield

    def greet(self, job: str) -> None:
        """All ranks of the incarnation of now say hello."""
        for rank in range(RANKS):
            self._say(
                Hello(
                    job=job, incarnation=str(self.iteration[job] // LASTS), rank=rank, world_size=RANKS,
                    global_batch=X, min_samples=0, max_samples=X, machine=f"m{rank}",
                )
            )  # fmt: skip

    def _say(self, message: Hello | Report) -> None:
        peer = f"{message.job} {message.rank}".encode()
        for _, reply in self.table.handle(peer, encode_message(message), 0.0):
            if isinstance(reply, Plan):
                self.versions[f"{message.job} {message.incarnation}"] = reply.version


class Killer:
    """Ends this process within the n-th system call of the journal's, after some of its bytes."""

    def __init__(self, draw: random.Random, most_calls: int) -> None:
        self._left = draw.randrange(1, most_calls)
        self._share, self._after = draw.random(), draw.random() < 0.5
        for name in CALLS:
            setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, call: Any) -> Any:
        def wrapper(*arguments: Any) -> Any:
            if threads_call(name, arguments):
                self._left -= 1
                if not self._left:
                    self._end(name, call, arguments)
            return call(*arguments)

        return wrapper

    def _end(self, name: str, call: Any, arguments: tuple[Any, ...]) -> None:
        if name == "write":
            data = bytes(arguments[1])
            call(arguments[0], data[: int(self._share * (len(data) + 1))])
        elif self._after:
            call(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)


def threads_call(name: str, arguments: tuple[Any, ...]) -> bool:
    """Whether a call is the journal's: not what the child tells its parent."""
    return name != "write" or bytes(arguments[1][:1]) != b"{"


def child(path: Path, parent: int, seed: int, most_calls: int) -> None:
    """Serve until killed; each line to the parent says what the disk surely has."""
    journal_module.COMPACT_ABOVE_BYTES = COMPACT_ABOVE_BYTES
    draw, now_s = random.Random(seed), [0.0]
    Killer(draw, most_calls)
    journal = Journal(path)
    served = Served(JobTable(sizer_maker("ema")))
    kept = {job: _place(state, incarnation) for job, (incarnation, state) in states(journal).items()}
    keeper = Keeper(served.table, journal, lambda: now_s[0])
    for job, number in kept.items():
        served.iteration[job] = number
        if number % LASTS:
            served.greet(job)
    append = journal.append

    def noted(record: Any) -> int:
        if isinstance(record, Started | Learnt):
            kept[record.job] = served.iteration[record.job]
        return append(record)

    journal.append = noted  # type: ignore[method-assign]
    while True:
        for _ in served.step(draw.choice(JOBS)):
            now_s[0] += 0.3
            keeper.look(now_s[0])
        if draw.random() < SYNCED and journal.flush():
            os.write(parent, json.dumps({"kept": kept, "versions": served.versions}).encode() + b"\n")


def states(journal: Journal) -> dict[str, tuple[str, dict[str, Any]]]:
    """Incarnation and state of each job in a journal."""
    return {name: (job.incarnation, job.state or {}) for name, job in past_jobs(journal, 1e9).items()}


def _place(state: dict[str, Any], incarnation: str) -> int:
    """The iteration that comes after this state."""
    closed = state["_inbox"]["closed"]
    return int(incarnation) * LASTS if closed is None else int(closed) + 1


class Truth:
    """All states that the jobs go through when nobody kills anything, worked out as far as asked."""

    def __init__(self) -> None:
        self._served = Served(JobTable(sizer_maker("ema")))
        self._states: dict[tuple[str, str, int], Any] = {}

    def was(self, job: str, incarnation: str, state: dict[str, Any]) -> bool:
        """Whether the job ever was in this state; detectors look when they may, so theirs is left out."""
        state = {name: value for name, value in state.items() if name != "stragglers"}
        number = _place(state, incarnation)
        while self._served.iteration[job] <= number:
            for _ in self._served.step(job):
                live = self._served.table.jobs[job].live
                if live is not None:
                    now = live.sizer.told()
                    place = (job, live.hello.incarnation, _place(now, live.hello.incarnation))
                    self._states[place] = decode(encode(now), dict)
        return alike(self._states.get((job, incarnation, number)), state)


def alike(one: Any, other: Any) -> bool:
    """Whether two states agree, but for the last digits, which the layout of arrays in memory moves."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and np.allclose(one, other, rtol=1e-7, atol=1e-12, equal_nan=True)
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.isclose(one, other, rtol=1e-7, atol=1e-12, equal_nan=True))
    return bool(one == other)


class Counts:
    """What became of the restarts."""

    def __init__(self) -> None:
        self.kills = self.torn = self.compactions = self.refused = 0
        self.states = self.untrue = self.older_than_synced = self.versions_back = 0
        self.iterations = self.largest_bytes = 0


def run(kills: int, seed: int, folder: Path, most_calls: int = 80) -> Counts:
    """Kill and restart so often; each child goes on from what the one before it left."""
    counts, truth, draw = Counts(), Truth(), random.Random(seed)
    path = folder / "journal"
    synced: dict[str, int] = {}
    versions: dict[str, int] = {}
    for _ in range(kills):
        told = _killed(path, draw.randrange(2**32), most_calls)
        for line in told:
            synced |= line["kept"]
            counts.versions_back += sum(new < versions.get(who, -1) for who, new in line["versions"].items())
            versions |= line["versions"]
        counts.kills += 1
        counts.torn += _torn(path)
        counts.compactions += path.with_name("journal.new").exists()
        _look(path, folder / "copy", truth, synced, counts)
    return counts


def _killed(path: Path, seed: int, most_calls: int) -> list[dict[str, Any]]:
    """Let a child serve until it kills itself; what it said was on the disk."""
    out, into = os.pipe()
    process = os.fork()
    if not process:
        os.close(out)
        child(path, into, seed, most_calls)
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        lines = [json.loads(line) for line in pipe]
    _, status = os.waitpid(process, 0)
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
        raise SystemExit(f"the child ended by itself: {status}")
    return lines


def _torn(path: Path) -> bool:
    """Whether the file ends within a record."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        ends = [place for _, place in journal_module.payloads(file)]
    return path.stat().st_size != (ends[-1] if ends else 0)


def _look(path: Path, copy: Path, truth: Truth, synced: dict[str, int], counts: Counts) -> None:
    """Open a copy as a restarted manager would, and judge it."""
    if not path.exists():
        counts.older_than_synced += bool(synced)
        return
    copy.write_bytes(path.read_bytes())
    counts.largest_bytes = max(counts.largest_bytes, path.stat().st_size)
    try:
        journal = Journal(copy)
    except LbbspError:
        counts.refused += 1
        return
    found = states(journal)
    journal.close()
    for job, (incarnation, state) in found.items():
        counts.states += 1
        counts.untrue += not truth.was(job, incarnation, state)
        counts.iterations = max(counts.iterations, _place(state, incarnation))
    for job, number in synced.items():
        counts.older_than_synced += job not in found or _place(found[job][1], found[job][0]) < number


def main() -> None:
    """Run it and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="write the counts there; - for standard output")
    arguments = parser.parse_args()
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        counts = vars(run(arguments.kills, arguments.seed, Path(folder)))
    for name, value in (counts | {"took_s": round(time.perf_counter() - began_s, 1)}).items():
        print(f"{name:20} {value}")
    if arguments.json:
        text = json.dumps(counts, indent=2)
        print(text) if arguments.json == "-" else Path(arguments.json).write_text(text)


if __name__ == "__main__":
    main()
