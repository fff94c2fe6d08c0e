"""Real torchrun jobs that lose and gain workers: what was learnt follows the core, not the rank, across restarts."""

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torchrun
from harness import ManagerProcess
from random_manager import IN_TIME

from lbbsp.service.journal_file import payloads
from lbbsp.service.journal_records import Started, read_record

pytestmark = [
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores to pin ranks to"),
    pytest.mark.timeout(300),
]
SCRIPT = Path(__file__).parent / "elastic_job.py"
QUICK = "join_timeout=60,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=8"


def until(condition: Callable[[], bool], what: str) -> None:
    """Starting torch takes long on a busy machine."""
    deadline_s = time.perf_counter() + 90.0
    while not condition():
        time.sleep(0.1)
        assert time.perf_counter() < deadline_s, f"{what}: not in 90 s"


def lose(agent: Any) -> None:
    """A machine is gone: the agent and all that it has started."""
    for process in [*psutil.Process(agent.pid).children(recursive=True), psutil.Process(agent.pid)]:
        process.kill()
    agent.join()


class Agents:
    """Agents of torchrun, each in a session of its own; all end with the test."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.port = free_port()
        self._running: list[Any] = []

    def launch(self, *options: str, manager: str | None = None, job: tuple[str, ...] = ()) -> Any:
        environment = {"LBBSP_STATE_DIR": str(self.out / "cache"), IN_TIME: "yes"}
        if manager is not None:
            environment["LBBSP_MANAGER"] = manager
        process = torchrun.started([*options], SCRIPT, [str(self.out), *job], environment, self.out / "log")
        self._running.append(process)
        return process

    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def close(self) -> None:
        for process in self._running:
            if process.is_alive():
                lose(process)


def ended(agent: Any, out: Path) -> None:
    agent.join(110)
    assert agent.exitcode == 0, (out / "log").read_text()


def rows(out: Path, restart: int, rank: int) -> list[dict[str, Any]]:
    """Lines of the newest process that was this rank in that restart."""
    files = sorted(out.glob(f"{restart}-{rank}-*"), key=lambda path: path.stat().st_mtime)
    return lines(files[-1]) if files else []


def records(journal: Path) -> list[Any]:
    """All that was ever written there since the last compaction."""
    with journal.open("rb") as file:
        return [read_record(payload) for payload, _ in payloads(file)]


def begun_with(journal: Path) -> list[tuple[tuple[str, ...], np.ndarray]]:
    """The devices of each incarnation and what was known of their speeds when it began; one more after a resume."""
    begun = [record for record in records(journal) if isinstance(record, Started)]
    return [
        (tuple(hello.device for hello in one.hellos), one.state["_forecaster"]["last"])
        for one in begun
        if one.state is not None
    ]


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    made = Agents(tmp_path)
    yield made
    made.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ManagerProcess]:
    process = ManagerProcess(tmp_path / "manager.log", 0, ["--journal", str(tmp_path / "journal")])
    yield process
    process.stop()


C10D = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0")
EQUAL = 16


def sizes(out: Path, restart: int, rank: int) -> list[int]:
    return [len(row["indices"]) for row in rows(out, restart, rank)]


def each_once(out: Path, restart: int, before: int) -> None:
    """No sample of the iterations before the restart comes again after it."""
    seen = [index for rank in range(2) for row in rows(out, before, rank) for index in row["indices"]]
    again = [index for rank in range(2) for row in rows(out, restart, rank) for index in row["indices"]]
    assert len(set(seen)) == len(seen)
    assert len(set(again)) == len(again)
    last = rows(out, before, 0)[-1]["number"]
    whole = {index for rank in range(2) for row in rows(out, before, rank)[:last] for index in row["indices"]}
    assert not whole & set(again)


def balanced(out: Path, restart: int, rank: int, slow: bool) -> None:
    """By the core, not by the rank; soon. The slow core's share is a fifth."""
    early = sizes(out, restart, rank)[8]
    assert early < 0.7 * EQUAL if slow else early > 1.3 * EQUAL, sizes(out, restart, rank)


def lines_of(out: Path, restart: int, rank: int, number: int) -> None:
    until(lambda: len(rows(out, restart, rank)) >= number, f"{number} iterations")


def worker(out: Path, restart: int, rank: int) -> int:
    """Process id of a rank."""
    return int(next(out.glob(f"{restart}-{rank}-*")).name.split("-")[2])


def test_a_killed_worker_and_ranks_that_change_places(tmp_path, manager, agents):
    agent = agents.launch(
        "--nproc-per-node=2", "--max-restarts=2", *C10D, manager=manager.address, job=("--die=0:1:14",)
    )  # fmt: skip
    ended(agent, tmp_path)
    assert sizes(tmp_path, 0, 0)[:3] == [EQUAL] * 3
    assert sizes(tmp_path, 0, 0)[-1] > 1.3 * EQUAL
    balanced(tmp_path, 1, 0, slow=True)
    each_once(tmp_path, 1, 0)
    (fresh_on, fresh), *_, (then_on, known) = begun_with(tmp_path / "journal")
    assert then_on == fresh_on[::-1]
    assert np.isnan(fresh).all()
    assert known[1] > 2 * known[0]


def test_the_jobs_own_manager_passes_on_what_it_learnt_to_the_one_that_follows_it(tmp_path, agents):
    agent = agents.launch("--nproc-per-node=2", "--max-restarts=2", *C10D, job=("--die=0:0:14",))
    ended(agent, tmp_path)
    balanced(tmp_path, 1, 0, slow=True)
    log = (tmp_path / "log").read_text()
    assert "1 jobs are remembered" in log
    assert "takes over what its devices had shown" in log


def test_manager_and_worker_are_killed_together(tmp_path, manager, agents):
    agent = agents.launch(
        "--nproc-per-node=2", "--max-restarts=2", *C10D, manager=manager.address,
        job=(f"--until={tmp_path / 'enough'}",),
    )  # fmt: skip
    lines_of(tmp_path, 0, 0, 60)
    manager.stop(signal.SIGKILL)
    os.kill(worker(tmp_path, 0, 1), signal.SIGKILL)
    journal = ["--journal", str(tmp_path / "journal")]
    again = ManagerProcess(tmp_path / "manager.log", int(manager.address.rpartition(":")[2]), journal)
    lines_of(tmp_path, 1, 0, 10)
    (tmp_path / "enough").touch()
    ended(agent, tmp_path)
    balanced(tmp_path, 1, 0, slow=True)
    assert "takes over what its devices had shown" in again.log()
    again.stop()


@pytest.mark.slow
def test_the_world_shrinks_and_grows_and_only_the_devices_that_stay_are_known(tmp_path, manager, agents):
    """Two machines of one run: two ranks and one; the second is lost, and comes back."""
    rendezvous = (
        "--nnodes=1:2", "--max-restarts=5", "--rdzv-id=shrinks", "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{agents.port}",
    )  # fmt: skip
    job = ("--places=01,01", f"--until={tmp_path / 'enough'}")

    def machine(ranks: int, has_store: int) -> Any:
        here = (f"--nproc-per-node={ranks}", f"--rdzv-conf={QUICK},is_host={has_store}")
        return agents.launch(*rendezvous, *here, manager=manager.address, job=job)

    one = machine(2, 1)
    until(agents.listens, "the first machine, which has the store")
    other = machine(1, 0)
    worlds_of(tmp_path, [3] * 20)
    lose(other)
    worlds_of(tmp_path, [2] * 20)
    other = machine(1, 0)
    worlds_of(tmp_path, [3] * 20)
    (tmp_path / "enough").touch()
    ended(one, tmp_path)
    ended(other, tmp_path)
    begun = begun_with(tmp_path / "journal")
    three, two, again = begun[0], next(one for one in begun if len(one[1]) == 2), begun[-1]
    assert [len(known) for _, known in (three, two, again)] == [3, 2, 3]
    assert np.isnan(three[1]).all()
    assert two[1][0] > 2 * two[1][1]
    assert again[1][again[0].index("cpu:0")] > 2 * again[1][again[0].index("cpu:1")]


def worlds_of(out: Path, newest: list[int]) -> None:
    """Until the newest iterations of rank 0 were of these world sizes."""

    def there() -> bool:
        paths = sorted(out.glob("*-0-*"), key=lambda path: path.stat().st_mtime)
        return [row["world"] for path in paths for row in lines(path)][-len(newest) :] == newest

    until(there, f"iterations of worlds {newest[0]}")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
