"""A job that tells of many iterations at once follows a change as soon as one that tells of each, however far ahead."""

from collections import deque
from collections.abc import Callable

import numpy as np
import pytest

from lbbsp.core.manager import BatchSizeManager, JobSpec
from lbbsp.core.sizing import Bounds

BOUNDS = Bounds(256, np.zeros(2), np.full(2, 256), 1)
GROUP = 16
SETTLE = 10 * GROUP
FEW = 4
"""Groups: one is told of at its end, the plan after it judged by the next, and each is a third of the window."""


class Job:
    """Two ranks and their manager; a plan acts `lookahead` + 1 iterations after what it is based on."""

    def __init__(self, lookahead: int) -> None:
        self.manager = BatchSizeManager(JobSpec(BOUNDS, lookahead=lookahead), "ema")
        self.iteration = 0
        self._coming = deque([BOUNDS.equal()] * (lookahead + 1), maxlen=lookahead + 1)

    def run(self, iterations: int, speeds: tuple[float, float], group: int = 1) -> None:
        for _ in range(iterations // group):
            sizes = self._coming.popleft()
            self.iteration += group
            for rank, speed in enumerate(speeds):
                made = self.manager.report(
                    rank,
                    self.iteration,
                    int(sizes[rank]),
                    max(sizes[rank], 1) / speed,
                    iterations=group,
                    together=group,
                )
            self._coming.extend([made.sizes] * group)
            self.manager.catch_up()

    @property
    def mode(self) -> str:
        return self.manager.stats().mode


def gone_back_to_equal(lookahead: int) -> Job:
    """Speeds that jump faster than plans act: balanced sizes lose, and the job stops them."""
    job = Job(lookahead)
    for turn in range(100):
        job.run(lookahead + 2, (1000.0, 400.0) if turn % 2 else (400.0, 1000.0))
        if job.mode == "equal":
            return job
    raise AssertionError("balanced sizes never lost")


def iterations_until(done: Callable[[Job], bool], job: Job, group: int) -> int:
    """After a step of rank 1 to half its speed."""
    began = job.iteration
    while not done(job) and job.iteration < began + 400:
        job.run(group, (1000.0, 500.0), group)
    return job.iteration - began


@pytest.mark.parametrize("lookahead", [0, 2, 8])
def test_a_job_with_equal_sizes_balances_again_as_soon_by_groups_as_by_single_iterations(lookahead: int) -> None:
    waited = {}
    for group in (1, GROUP):
        job = gone_back_to_equal(lookahead)
        job.run(SETTLE, (1000.0, 1000.0), group)
        assert job.mode == "equal"
        waited[group] = iterations_until(lambda job: job.mode != "equal", job, group)
    assert waited[GROUP] <= waited[1] + FEW * GROUP


@pytest.mark.parametrize("lookahead", [0, 2, 8])
def test_sizes_follow_a_step_as_soon_by_groups_as_by_single_iterations(lookahead: int) -> None:
    waited = {}
    for group in (1, GROUP):
        job = Job(lookahead)
        job.run(SETTLE, (1000.0, 1000.0), group)
        waited[group] = iterations_until(lambda job: job.manager.stats().sizes[0] >= 165, job, group)
    assert waited[GROUP] <= waited[1] + FEW * GROUP
