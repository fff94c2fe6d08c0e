"""Rules 2 and 3 on real processes: same sizes on all ranks, each sample once, no hang; SIGSTOP and manager kills."""

import itertools
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from random_manager import KINDS, Faults, ScriptedManager
from ranks import run
from schedules import ITERATIONS, Account, Schedule, follow, quiet

AT_ONCE = 2


class Stopper:
    """Stops single ranks for a moment, now and then."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.stopped = 0

    def __call__(self, pids: list[int]) -> None:
        threading.Thread(target=self._run, args=(pids,), daemon=True).start()

    def _run(self, pids: list[int]) -> None:
        for _ in range(3):
            time.sleep(self._random.uniform(0.1, 0.4))
            pid = self._random.choice(pids)
            try:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.1)
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                return
            self.stopped += 1


def faults(seed: int) -> Faults:
    random = Random(seed)
    kinds = random.sample(KINDS, 4)
    return Faults(
        rates={kind: random.uniform(0.1, 0.3) for kind in kinds},
        away=(4,) if seed % 2 else (),
        away_s=0.1,
        quiet=quiet,
    )


@pytest.mark.parametrize("group", range(3))
def test_random_schedules_of_real_ranks(group: int) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        offered, adopted = zip(*pool.map(play, range(4 * group, 4 * group + 4)), strict=True)
    assert sum(adopted) >= 0.9 * sum(offered) > 0


def play(seed: int) -> tuple[int, int]:
    """Run one schedule; plans offered, and adopted, while nothing went wrong."""
    schedule = Schedule.of(seed)
    stopper = Stopper(seed)
    with ScriptedManager(seed, faults(seed)) as manager:
        ranks = run(schedule.world_size, follow, schedule, env=manager.env, timeout_s=60, watch=stopper)
    check(ranks, schedule)
    changes = list(ranks[0].sizes.values())
    plan_changes = sum(a != b for a, b in itertools.pairwise(changes))
    effective = stopper.stopped + manager.times_away + sum(one.fault is not None for one in manager.offered)
    whole = [one for one in manager.offered if one.fault is None and quiet(one.iteration)]
    adopted = sum(one.iteration in ranks[0].based_on for one in whole)
    print(f"iterations {ITERATIONS} plan_changes {plan_changes} faults_effective {effective}", end=" ")
    print(f"adopted {adopted}/{len(whole)} stopped {stopper.stopped} peeks {[one.peeks for one in ranks]} {schedule}")
    assert plan_changes > 0, schedule
    assert effective > 0, schedule
    return len(whole), adopted


def check(ranks: list[Account], schedule: Schedule) -> None:
    first = ranks[0]
    for rank in ranks:
        assert rank.sizes == first.sizes
        assert rank.wrongly_weighted == 0
        assert [epoch for epoch, _ in rank.draws] == [epoch for epoch, _ in first.draws]
    taken: dict[int, list[int]] = {}
    batch = schedule.local_batch * schedule.world_size
    for draws in zip(*(rank.draws for rank in ranks), strict=True):
        together = [index for _, samples in draws for index in samples]
        assert len(together) <= batch
        if draws[0][0] >= 0:
            taken.setdefault(draws[0][0], []).extend(together)
    for samples in taken.values():
        assert len(samples) == len(set(samples)), "a sample came twice in an epoch"
    assert any(len(samples) == schedule.samples for samples in taken.values()), "no epoch was whole"
