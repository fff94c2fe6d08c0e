"""Plays a random schedule on simulated ranks and checks rules 2, 3 and 5; the manager is random, over real sockets."""

import itertools
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from mesh import HANG_S, Mesh
from random_manager import ScriptedManager
from simulated import Account, Schedule, SimulatedRank

AT_ONCE = 8


@dataclass(frozen=True)
class Result:
    """What a schedule came to."""

    iterations: int
    plan_changes: int
    faults_effective: int
    offered_quietly: int
    adopted_quietly: int


def play_all(seeds: Iterable[int]) -> list[Result]:
    """Several schedules, some at a time: their ranks sleep mostly."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(play, seeds))


def play(seed: int) -> Result:
    """Run a schedule and check rules 2, 3 and 5; what it came to.

    Raises:
        AssertionError: a rule is broken, or a rank hung or raised.
    """
    schedule = Schedule.of(seed)
    with ScriptedManager(seed, schedule.faults) as manager:
        mesh = Mesh(schedule.world_size)
        ranks = [SimulatedRank(schedule, rank, mesh, manager.address) for rank in range(schedule.world_size)]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join(2 * HANG_S)
    faults = [one.fault for one in ranks if one.fault is not None]
    assert not faults, f"{schedule}: {faults}"
    assert not any(one.is_alive() for one in ranks), f"{schedule} hung"
    accounts = [one.account for one in ranks]
    _check_same_plan(schedule, accounts)
    _check_each_once(schedule, accounts)
    return _result(schedule, accounts, manager)


def _check_same_plan(schedule: Schedule, accounts: list[Account]) -> None:
    first = accounts[0]
    for rank, account in enumerate(accounts):
        assert account.sizes == first.sizes, f"{schedule}: rank {rank} follows other sizes than rank 0"
        assert all(account.led), f"{schedule}: rank {rank} weighs draws {account.led} by another batch"
    for sizes in first.sizes.values():
        assert sum(sizes) == schedule.bounds.global_batch


def _check_each_once(schedule: Schedule, accounts: list[Account]) -> None:
    """Draw k of each iterator takes positions kX .. kX+X, each once."""
    batch = schedule.bounds.global_batch
    assert len({len(account.draws) for account in accounts}) == 1
    for draws in zip(*(account.draws for account in accounts), strict=True):
        assert len({(iterator, draw) for iterator, draw, _ in draws}) == 1
        draw = draws[0][1]
        taken = sorted(position for _, _, positions in draws for position in positions)
        assert taken == list(range(draw * batch, min(schedule.samples, draw * batch + batch))), f"{schedule}: {draws}"


def _result(schedule: Schedule, accounts: list[Account], manager: ScriptedManager) -> Result:
    sizes = list(accounts[0].sizes.values())
    quiet = [offer for offer in manager.offered if offer.fault is None and schedule.faults.quiet(offer.iteration)]
    seen = set(accounts[0].based_on)
    return Result(
        iterations=accounts[0].iterations,
        plan_changes=sum(a != b for a, b in itertools.pairwise(sizes)),
        faults_effective=manager.times_away + sum(offer.fault is not None for offer in manager.offered),
        offered_quietly=len(quiet),
        adopted_quietly=sum(offer.iteration in seen for offer in quiet),
    )
