"""Rules 2, 3 and 5 on real processes: each sample once an epoch, sizes alike on all ranks, whatever happens."""

import os
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from random_manager import Faults, ScriptedManager
from tf_ranks import SOON, outcomes, run
from tf_walks import Plan, Walk, bereft, dying, part, peeking, walk

DRAWS = 13


def merged(ranks: list[Walk]) -> list[list[int]]:
    """The global batches in turn."""
    assert len({len(one.draws) for one in ranks}) == 1
    return [[number for one in parts for number in one] for parts in zip(*(one.draws for one in ranks), strict=True)]


def check(ranks: list[Walk], plan: Plan) -> None:
    batches = merged(ranks)
    assert len(batches) == plan.epochs * DRAWS
    for one in ranks[1:]:
        assert one.sizes == ranks[0].sizes, "sizes differ between ranks"
    orders = []
    for epoch in range(plan.epochs):
        taken = [number for batch in batches[epoch * DRAWS : (epoch + 1) * DRAWS] for number in batch]
        assert Counter(taken) == Counter(range(plan.samples))
        orders.append(tuple(taken))
    assert len(set(orders)) == plan.epochs, "every epoch had the same order"
    sizes = [tuple(len(one.draws[draw]) for one in ranks) for draw in range(len(batches))]
    assert sum(a != b for a, b in pairwise(sizes)) > 10


CASES = {
    "two_ranks": (2, Plan()),
    "three_ranks": (3, Plan()),
    "lookahead": (2, Plan(lookahead=(2, 0), epochs=5)),
    "pipeline": (2, Plan(pipeline=True, options={}, lookahead=(0, 3))),
}


@pytest.mark.parametrize("name", CASES)
def test_each_sample_once_an_epoch_and_the_same_plan_everywhere(name: str) -> None:
    world_size, plan = CASES[name]
    faults = Faults(rates={"drop": 0.1, "twice": 0.1, "wrong_sum": 0.1, "earlier_incarnation": 0.1}, away=(15,))
    with ScriptedManager(len(name), faults) as manager:
        ranks = run(world_size, walk, plan, env=manager.env)
    check(ranks, plan)
    assert manager.times_away == 1
    assert len({one.incarnation for one in manager.hellos}) == 1


def test_a_peek_on_one_rank_and_an_early_break() -> None:
    plan = Plan()
    with ScriptedManager(3) as manager:
        ranks = run(2, peeking, plan, env=manager.env)
    batches = merged(ranks)
    assert len(batches) == DRAWS + 5 + DRAWS
    assert ranks[0].sizes == ranks[1].sizes
    for taken in (batches[:DRAWS], batches[DRAWS + 5 :]):
        assert Counter(n for batch in taken for n in batch) == Counter(range(plan.samples))


def test_no_manager_ever() -> None:
    ranks = run(2, walk, Plan(epochs=1), env={"LBBSP_MANAGER": "tcp://127.0.0.1:9"})
    assert Counter(n for batch in merged(ranks) for n in batch) == Counter(range(206))
    assert {sizes for one in ranks for sizes in one.sizes} == {(8, 8)}


def test_the_jobs_own_manager_killed() -> None:
    plan = Plan(epochs=2)
    ranks = run(2, bereft, plan)
    batches = merged(ranks)
    assert ranks[0].sizes == ranks[1].sizes
    for epoch in range(2):
        taken = [number for batch in batches[epoch * DRAWS : (epoch + 1) * DRAWS] for number in batch]
        assert Counter(taken) == Counter(range(plan.samples))
    assert ranks[0].state["lbbsp/manager_away"] == 1.0


def on_the_path(folder: Path) -> list[list[int]]:
    """Samples of each step of the final weights' path."""
    steps: dict[int, list[int]] = {}
    for path in folder.glob("steps.*"):
        _, iteration, _ = path.name.split(".")
        steps.setdefault(int(iteration), []).extend(map(int, path.read_text().split()))
    return [steps[iteration] for iteration in sorted(steps)]


def test_resumes_within_an_epoch_in_other_worlds_and_the_chief_killed(tmp_path: Path) -> None:
    """206 samples, 16 at a time: 13 draws an epoch. 7 draws by 2 ranks; 3 ranks, killed; 3 more; 2 to the end."""
    plan = Plan()
    with ScriptedManager(5) as manager:
        run(2, part, plan, str(tmp_path), 7, env=manager.env)
        killed = outcomes(3, part, plan, str(tmp_path), 20, 8, env=manager.env)
        for stale in tmp_path.glob("steps.*"):  # of a step that may be done again by fewer ranks
            if int(stale.name.split(".")[1]) > 12:
                os.unlink(stale)
        run(3, part, plan, str(tmp_path), 10, env=manager.env)
        last = run(2, part, plan, str(tmp_path), 17, env=manager.env)
    assert killed[0].error == "died"
    assert all("Unavailable" in str(one.error) or "Error" in str(one.error) for one in killed[1:])
    taken = on_the_path(tmp_path)
    assert len(taken) == 3 * DRAWS
    for epoch in range(3):
        numbers = [number for batch in taken[epoch * DRAWS : (epoch + 1) * DRAWS] for number in batch]
        assert Counter(numbers) == Counter(range(plan.samples))
    assert all(one.state == last[0].state for one in last)
    for one in last[1:]:
        for mine, first in zip(one.weights, last[0].weights, strict=True):
            np.testing.assert_array_equal(mine, first)


def test_a_dead_worker_ends_its_peers_with_tensorflows_own_error() -> None:
    with ScriptedManager() as manager:
        ended = outcomes(2, dying, Plan(), env=manager.env | SOON, timeout_s=60)
    assert ended[1].error == "died"
    assert str(ended[0].error).startswith("UnavailableError"), ended[0].error


def test_a_map_that_raises_is_the_users_own_error() -> None:
    with ScriptedManager() as manager:
        ended = outcomes(2, walk, Plan(broken=70), env=manager.env | SOON, timeout_s=60)
    texts = sorted(str(one.error).partition(":")[0] for one in ended)
    assert "LookupError" in texts
    assert set(texts) <= {"LookupError", "UnavailableError", "died"}, texts
