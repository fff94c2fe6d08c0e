"""What a user tells a job's own manager: predictor and rule by balance(), a recording by the environment.

One from outside keeps its own choice, as is told.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from epochs import Numbers
from random_manager import IN_TIME, ScriptedManager
from ranks import outcomes, run
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from lbbsp.adapters.pytorch import balance
from lbbsp.protocol import Look
from lbbsp.recording import read
from lbbsp.top.asking import Asker

CHOICES: list[dict[str, str]] = [
    {"predictor": "mean"},
    {"predictor": "auto:members=last+mean", "rule": "speed"},
    {"rule": "leader-straggler"},
]
MAY_FORECAST = {"mean": {"mean"}, "auto:members=last+mean": {"last", "mean", "equal"}}
"""In charge by each choice: none of them is what forecasts without one."""


def balanced(rank: int, choice: dict[str, str]) -> Any:
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    data = Numbers(64)
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, 2, rank))
    return balance(model, loader, **choice)


def _embedded(rank: int, choice: dict[str, str]) -> tuple[str, list[str]] | None:
    model, batches = balanced(rank, choice)
    for batch in batches:
        model(batch.float().reshape(-1, 1)).mean().backward()
    child = batches.balancer.session._child
    if child is None:
        return None
    asker = Asker(child.address, child.curve)
    until_s = time.monotonic() + 10.0  # training never waits for the manager, who may not have heard of it yet
    while not (seen := asker.ask(Look(job=batches.balancer.terms.job))).predictor and time.monotonic() < until_s:
        time.sleep(0.05)
    asker.close()
    return seen.predictor, Path(f"/proc/{child.process.pid}/cmdline").read_text().split("\0")


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_the_jobs_own_manager_takes_the_users_choice(choice: dict[str, str]) -> None:
    found, other = run(2, _embedded, choice)
    assert other is None
    in_charge = {name.split()[0] for name in found[0].split(", ")}
    assert in_charge
    assert in_charge <= MAY_FORECAST.get(choice.get("predictor", ""), {"ema"})
    for name, value in choice.items():
        assert found[1][found[1].index(f"--{name}") + 1] == value


def _trained(rank: int) -> None:
    """Until so many plans have come into force, for each of which both ranks had reported; they do so on all alike."""
    model, batches = balanced(rank, {})
    planned: set[int] = set()
    for _ in range(1_000):
        for batch in batches:
            model(batch.float().reshape(-1, 1)).mean().backward()
            planned.add(batches.balancer.follower.in_force.based_on_iteration)
        if len(planned) > 60:
            break
    batches.balancer.close()


def test_the_jobs_own_manager_records_where_the_environment_says(tmp_path: Path) -> None:
    run(2, _trained, env={"LBBSP_MANAGER_RECORD": str(tmp_path), "LBBSP_JOB": "mine", IN_TIME: "yes"})
    (path,) = tmp_path.iterdir()
    recording = read(path)
    assert path.name.startswith("mine.")
    assert len(recording.own_time_s) >= 20
    assert "running" in recording.sensor_names
    known = np.isfinite(recording.at_start[2:, :, recording.sensor_names.index("running")])
    assert known.mean() > 0.9


def _outside(rank: int, choice: dict[str, str]) -> None:
    balanced(rank, choice)


def test_a_manager_from_outside_keeps_its_own_and_one_line_says_so() -> None:
    with ScriptedManager() as manager:
        ended = outcomes(2, _outside, {"predictor": "mean"}, env=manager.env)
    lines = [line for outcome in ended for line in outcome.log if "has no effect" in line]
    assert len(lines) == 1, lines
    assert "--predictor mean" in lines[0]
    assert all(outcome.error is None for outcome in ended)


@pytest.mark.parametrize(
    ("choice", "said"),
    [({"predictor": "nrax"}, "unknown predictor 'nrax'"), ({"rule": "fair"}, "unknown rule 'fair'")],
    ids=["predictor", "rule"],
)
def test_what_there_is_not_is_refused_on_all_ranks(choice: dict[str, str], said: str) -> None:
    for outcome in outcomes(2, _outside, choice, timeout_s=20):
        assert said in (outcome.error or "")


def _unlike(rank: int) -> None:
    balanced(rank, {"predictor": ("ema", "last")[rank]})


def test_ranks_that_choose_differently_are_refused() -> None:
    for outcome in outcomes(2, _unlike, timeout_s=20):
        assert "predictor" in (outcome.error or "")
