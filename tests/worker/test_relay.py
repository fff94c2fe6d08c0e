"""Rules 2 and 3: all ranks use the same sizes in every iteration, whatever befalls plans, manager and single ranks."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
from plays import play_all

GROUPS, SCHEDULES = 10, 19


def seeds(group: int) -> range:
    return range(group * SCHEDULES, (group + 1) * SCHEDULES)


@pytest.fixture(scope="module")
def played():
    """190 schedules of simulated ranks, in two processes; what a seed does: `simulated.Schedule.of(seed)`."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        yield [pool.submit(play_all, seeds(group)) for group in range(GROUPS)]


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_schedules_keep_all_ranks_on_the_same_plan(group: int, played) -> None:
    results = played[group].result(timeout=100)
    for seed, result in zip(seeds(group), results, strict=True):
        print(seed, result)
        assert result.iterations > 0, seed
        assert result.plan_changes > 0, seed
        assert result.faults_effective > 0, seed
    offered = sum(result.offered_quietly for result in results)
    assert sum(result.adopted_quietly for result in results) >= 0.9 * offered > 0
