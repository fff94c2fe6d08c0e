"""Silence is judged by the manager's clock: max(3 forecasts, 5 s); who is behind is named, nobody else."""

import numpy as np
import pytest

from lbbsp.service.silence import Silence, limit_s


def silence(ranks: int = 3, iteration: int = 10, now_s: float = 100.0) -> Silence:
    made = Silence(ranks, now_s)
    for rank in range(ranks):
        made.heard(rank, iteration, now_s)
    return made


@pytest.mark.parametrize(
    ("iteration_time_s", "wanted_s"), [(0.0, 5.0), (0.05, 5.0), (2.0, 6.0), (60.0, 180.0), (float("nan"), 5.0)]
)
def test_the_limit(iteration_time_s, wanted_s):
    assert limit_s(iteration_time_s) == wanted_s


def test_a_rank_behind_the_others_is_flagged_once_and_unflagged_once():
    quiet = silence()
    for rank in (0, 2):
        quiet.heard(rank, 11, 100.1)
    assert quiet.look(104.9, 0.05).fell_silent == []
    assert quiet.look(105.2, 0.05).fell_silent == [1]
    assert quiet.look(106.0, 0.05).fell_silent == []
    assert np.flatnonzero(quiet.silent).tolist() == [1]
    quiet.heard(1, 11, 107.0)
    assert quiet.look(107.1, 0.05).came_back == [1]
    assert quiet.look(107.2, 0.05).came_back == []
    assert not quiet.silent.any()


def test_a_job_that_rests_accuses_nobody_and_is_said_once():
    quiet = silence()
    first = quiet.look(106.0, 0.05)
    assert (first.rests, first.fell_silent) == (True, [])
    assert not quiet.look(107.0, 0.05).rests
    for rank in range(3):
        quiet.heard(rank, 11, 200.0)
    assert quiet.look(200.1, 0.05).came_back == []
    assert quiet.look(206.0, 0.05).rests


def test_a_slow_job_is_given_three_forecasts():
    quiet = silence()
    quiet.heard(0, 11, 101.0)
    assert quiet.look(128.0, 10.0).fell_silent == []
    assert quiet.look(131.0, 10.0).fell_silent == [1, 2]


def test_a_rank_that_said_bye_is_not_silent():
    quiet = silence()
    quiet.left[1] = True
    for rank in (0, 2):
        quiet.heard(rank, 11, 101.0)
    assert quiet.look(110.0, 0.05).fell_silent == []


def test_an_old_iteration_is_a_sign_of_life_all_the_same():
    quiet = silence()
    quiet.heard(1, 3, 104.0)
    assert quiet.iteration.tolist() == [10, 10, 10]
    assert quiet.look(106.0, 0.05).rests is False
