import numpy as np
import pytest
from simulate import bounds_of

from lbbsp.core.late import Late
from lbbsp.core.manager import BatchSizeManager, JobSpec

NAN = np.nan


def changes(gain: float, reads_ahead: int, input_share: float) -> int:
    """Plan changes of a job in which one rank becomes slower by `gain`."""
    manager = BatchSizeManager(JobSpec(bounds_of(2, 128), reads_ahead=reads_ahead))
    sizes = np.array([64, 64])
    for k in range(200):
        own_s = sizes * 1e-3 * np.array([1.0, 1.0 + (gain if k > 60 else 0.0)])
        for rank in range(2):
            made = manager.report(
                rank, k, int(sizes[rank]), float(own_s[rank]), input_s=float(input_share * own_s[rank])
            )
        sizes = made.sizes
    return manager.stats().plan_changes


def test_a_loader_bound_job_keeps_its_sizes_where_little_is_to_be_gained() -> None:
    assert changes(0.2, 4, 0.95) == 0
    assert changes(0.2, 4, 0.0) > 0


def test_a_loader_bound_job_still_follows_what_promises_much() -> None:
    assert changes(1.0, 4, 0.95) > 0


def test_reading_in_the_training_thread_moves_nothing_late() -> None:
    assert changes(0.2, 0, 0.95) > 0


@pytest.mark.parametrize("time_s", [[NAN, NAN], [0.1, NAN], [0.1, 0.1]])
def test_doubt_is_a_share_whatever_is_missing(time_s) -> None:
    late = Late(3)
    for _ in range(100):
        late.follow(np.array([0.2, 0.2]), np.array(time_s))
        assert 0.0 <= late.doubt <= 0.15
