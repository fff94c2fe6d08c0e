"""auto: finds what loses least time, for each worker, and stays with it."""

from itertools import pairwise

import numpy as np
import pytest

from lbbsp.errors import ConfigError
from lbbsp.predictors import make
from lbbsp.replay import steps

WORKERS = 6
NONE = np.empty((WORKERS, 0))


def fed(speeds, **options):
    auto = make("auto", WORKERS, background=False, **options)
    charges = []
    for speed in speeds:
        auto.observe(speed, NONE)
        charges.append(auto.in_charge())
    return auto, charges


def bursts(rng, count):
    """Independent from one iteration to the next: the long-run mean is the right forecast."""
    return np.linspace(50, 150, WORKERS) * np.where(rng.random((count, WORKERS)) < 0.3, 0.6, 1.0)


def phases(rng, count):
    """A neighbour that stays for about 20 iterations: the newest speed is the right forecast."""
    return 100 / (1.0 + (np.cumsum(rng.random((count, WORKERS)) < 0.05, axis=0) % 2))


def test_bursts_shorter_than_an_iteration_are_averaged():
    auto, _ = fed(bursts(np.random.default_rng(0), 300), members=["last", "ema", "mean"])
    assert set(auto.in_charge()) == {"mean"}


def test_neighbours_that_stay_are_followed():
    auto, _ = fed(phases(np.random.default_rng(1), 300), members=["ema", "last", "mean"])
    assert set(auto.in_charge()) == {"last"}


def test_workers_that_nothing_tells_apart_get_the_equal_split():
    rng = np.random.default_rng(2)
    auto, _ = fed(100 * np.exp(rng.normal(0, 0.2, (300, WORKERS))), members=["last"])
    assert set(auto.in_charge()) == {"equal"}
    assert np.ptp(auto.predict(NONE)) == 0


def test_each_worker_may_have_its_own():
    rng = np.random.default_rng(3)
    speeds = np.concatenate((bursts(rng, 600)[:, :3], phases(rng, 600)[:, 3:]), axis=1)
    auto, _ = fed(speeds, members=["last", "mean"])
    assert len(set(auto.in_charge())) > 1


def test_it_changes_its_mind_when_the_world_changes_and_does_not_thrash():
    rng = np.random.default_rng(4)
    speeds = np.concatenate((bursts(rng, 300), phases(rng, 300)))
    auto, charges = fed(speeds, members=["last", "ema", "mean"])
    changes = sum(a != b for a, b in pairwise(charges))
    assert set(auto.in_charge()) == {"last"}
    assert changes < 30


def test_members_that_are_equally_good_are_left_in_charge():
    _, charges = fed(np.full((100, WORKERS), 50.0), members=["last", "ema", "mean"])
    assert set(charges) == {("last",) * WORKERS}


def test_one_worker_alone_loses_nothing():
    auto = make("auto", 1, background=False)
    for speed in (10.0, 20.0, 30.0):
        auto.observe(np.array([speed]), np.empty((1, 0)))
    assert auto.predict(np.empty((1, 0)))[0] > 0


@pytest.mark.parametrize("member", ["last", "ema", "mean", "arx", "narx"])
def test_with_one_member_in_charge_it_forecasts_exactly_what_that_one_does_alone(member):
    rng = np.random.default_rng(5)
    speeds, sensors = phases(rng, 150), rng.random((150, WORKERS, 3))
    auto, alone = make(f"auto:members={member}", WORKERS, 3), make(member, WORKERS, 3)
    compared = 0
    for speed, reading in zip(speeds, sensors, strict=True):
        for predictor in (auto, alone):
            predictor.observe(speed, reading)
            predictor.train(steps(4))
        mine = np.array(auto.in_charge()) == member
        compared += np.count_nonzero(mine)
        np.testing.assert_array_equal(auto.predict(reading)[mine], alone.predict(reading)[mine])
    assert compared > 50 * WORKERS


def test_an_unknown_member_is_named():
    with pytest.raises(ConfigError, match="nrax"):
        make("auto", 3, members=["last", "nrax"])
