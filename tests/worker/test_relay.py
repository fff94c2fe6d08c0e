"""Rules 2 and 3: all ranks use the same sizes in every iteration, whatever befalls plans, manager and single ranks."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from plays import play

GROUPS, SCHEDULES = 19, 10
AT_ONCE = 4
"""Few enough for the ranks' threads not to wait for one another: that would be a fault in windows without any."""


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_schedules_keep_all_ranks_on_the_same_plan(group: int) -> None:
    """190 schedules of simulated ranks; what a seed does: `simulated.Schedule.of(seed)`."""
    seeds = range(group * SCHEDULES, (group + 1) * SCHEDULES)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(play, seeds))
    for seed, result in zip(seeds, results, strict=True):
        print(seed, result)
        assert result.iterations > 0, seed
        assert result.plan_changes > 0, seed
        assert result.faults_effective > 0, seed
    offered = sum(result.offered_quietly for result in results)
    assert sum(result.adopted_quietly for result in results) >= 0.9 * offered > 0
