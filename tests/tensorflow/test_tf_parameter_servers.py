"""ParameterServerStrategy on real processes: a coordinator, a server, two workers; each sample once, kills included."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import tf_served
from random_manager import ScriptedManager
from tf_ranks import Outcome, addresses, outcomes

CHIEF, SERVER = 0, 1


def served(
    steps: int, manager: ScriptedManager, folder: Path | None = None, watch: Callable[[list[int]], None] | None = None
) -> Outcome:
    found = addresses(4)
    env = manager.env | ({"LINGER": "1"} if watch else {})
    options = {"shuffle": True, "seed": 3, "work": 1}
    return outcomes(
        4,
        tf_served.process,
        1,
        steps,
        options,
        str(folder) if folder else None,
        cluster={"chief": found[:1], "ps": found[1:2], "worker": found[2:]},
        env=env,
        needed=1,
        watch=watch,
    )[0]


def check_prefix(taken: list[int]) -> None:
    """Whole epochs and a part of one more: no sample is ahead of another by two."""
    counts = Counter(dict.fromkeys(range(tf_served.SAMPLES), 0))
    counts.update(taken)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_each_sample_once_an_epoch_whatever_the_sizes() -> None:
    with ScriptedManager(4) as manager:
        outcome = served(80, manager)
    assert outcome.error is None, outcome.trace
    value = outcome.value
    taken = [number for step in value.taken for number in step]
    check_prefix(taken)
    assert len(taken) == value.state["consumed_samples"] == value.ledger[:, 1].sum()
    assert value.ledger[:, 0].sum() == 80
    assert len({len(step) for step in value.taken}) > 4, "sizes changed"


class Killer:
    """Kills one process when a checkpoint has been written, and a little later."""

    def __init__(self, folder: Path, which: int) -> None:
        self._folder, self._which = folder, which
        self._before = set(folder.glob("path.*"))

    def __call__(self, pids: list[int]) -> None:
        until_s = time.perf_counter() + 60
        while set(self._folder.glob("path.*")) == self._before and time.perf_counter() < until_s:
            time.sleep(0.05)
        time.sleep(0.2)
        os.kill(pids[self._which], signal.SIGKILL)


def test_the_chief_then_a_server_killed_and_all_restarted_from_the_checkpoint(tmp_path: Path) -> None:
    with ScriptedManager(6) as manager:
        first = served(20, manager, tmp_path, Killer(tmp_path, CHIEF))
        second = served(20, manager, tmp_path, Killer(tmp_path, SERVER))
        third = served(20, manager, tmp_path)
    assert first.error == "died"
    assert second.error is not None
    assert third.error is None, third.trace
    parts = sorted(tmp_path.glob("path.*"), key=lambda path: int(path.suffix[1:]))
    assert len(parts) == 4
    taken = [int(number) for path in parts for number in path.read_text().split()]
    assert len(taken) == third.value.state["consumed_samples"]
    check_prefix(taken)
