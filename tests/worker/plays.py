"""Plays a random schedule on simulated ranks and checks rules 2, 3 and 5; the manager is random, over real sockets."""

import itertools
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from mesh import HANG_S, Mesh
from random_manager import Job, ScriptedManager
from simulated import Account, Schedule, SimulatedRank

from lbbsp.core.bounds import Bounds
from lbbsp.protocol import Report

AT_ONCE = 8


@dataclass(frozen=True)
class Result:
    """What a schedule came to."""

    iterations: int
    plan_changes: int
    faults_effective: int
    offered_quietly: int
    adopted_quietly: int
    rested: int
    """Draws after reductions without a message."""
    together: int
    """The most reports that were sent at once."""


def play_all(seeds: Iterable[int]) -> list[Result]:
    """Several schedules, some at a time: their ranks sleep mostly."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(play, seeds))


class Resting(ScriptedManager):
    """Plans equal sizes but for ten iterations in forty, so that the job rests between."""

    together = 8

    def _offer(self, job: Job, report: Report, sizes: tuple[int, ...]) -> None:
        hello = job.hellos[0][1]
        bounds = Bounds(
            hello.global_batch, np.zeros(len(sizes)), np.full(len(sizes), hello.global_batch), hello.granularity
        )
        equal = tuple(bounds.equal().tolist())
        super()._offer(job, report, sizes if report.iteration % 40 >= 30 else equal)


def play_resting(seed: int) -> Result:
    """The same with a manager whose plans mostly stand still; `rests.CALM_AFTER` should be short."""
    return play(seed, Resting)


def play(seed: int, make: type[ScriptedManager] = ScriptedManager) -> Result:
    """Run a schedule and check rules 2, 3 and 5; what it came to.

    Raises:
        AssertionError: a rule is broken, or a rank hung or raised.
    """
    schedule = Schedule.of(seed)
    with make(seed, schedule.faults) as manager:
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
        rested=accounts[0].rested,
        together=max((report.together for report in manager.reports), default=1),
    )
