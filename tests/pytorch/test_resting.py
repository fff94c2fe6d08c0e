"""Rules 2 and 3 on real processes that rest: where sizes stand still, messages are left out; nothing else differs."""

import dataclasses
import itertools
from concurrent.futures import ThreadPoolExecutor

from plays import Resting
from ranks import run
from schedules import Account, Schedule, follow
from test_same_plan import AT_ONCE, Stopper, check, faults

from lbbsp.worker import rest

ITERATIONS = 160
CALM_AFTER, CALM_A_REST = 5, 1


def resting(rank: int, schedule: Schedule) -> Account:
    rest.CALM_AFTER, rest.CALM_A_REST = CALM_AFTER, CALM_A_REST
    return follow(rank, schedule)


def test_random_schedules_of_real_ranks_that_rest() -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        rested, changed, effective = zip(*pool.map(play, (1, 3, 5)), strict=True)
    assert all(rested), f"iterations told of together: {rested}"
    assert all(changed)
    assert all(effective)


def play(seed: int) -> tuple[int, int, int]:
    """Run one schedule; iterations that reports told of together, plan changes, faults that took effect."""
    schedule = dataclasses.replace(Schedule.of(seed), reductions=1, iterations=ITERATIONS, peeks=0.01)
    stopper = Stopper(seed)
    with Resting(seed, faults(seed)) as manager:
        ranks = run(schedule.world_size, resting, schedule, env=manager.env, timeout_s=90, watch=stopper)
    check(ranks, schedule)
    changes = sum(a != b for a, b in itertools.pairwise(ranks[0].sizes.values()))
    effective = stopper.stopped + manager.times_away + sum(one.fault is not None for one in manager.offered)
    rested = sum(report.iterations for report in manager.reports if report.iterations > 1)
    print(f"iterations {ITERATIONS} plan_changes {changes} faults_effective {effective} rested {rested} {schedule}")
    return rested, changes, effective
