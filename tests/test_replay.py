"""Replays: nothing looks into the future, the clairvoyant plan is the best, and both clocks agree."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbbsp.recording import Recording
from lbbsp.replay import Clairvoyant, Equal, Managed, Static, forecast, play
from lbbsp.world import World

WORKERS = 4


def recorded(speed, *, sensors=None, start_s=None, samples=100.0, fixed=0.0):
    own_time_s = (fixed + samples) / speed
    unknown = np.full_like(speed, np.nan)
    return Recording(
        name="made up",
        workers=tuple(f"w{number}" for number in range(speed.shape[1])),
        samples=np.where(np.isnan(speed), np.nan, samples),
        own_time_s=own_time_s,
        start_s=unknown if start_s is None else start_s,
        sensor_names=() if sensors is None else ("running",),
        at_start=np.empty((*speed.shape, 0)) if sensors is None else sensors,
    )


def speeds(seed, count=80):
    rng = np.random.default_rng(seed)
    running = 1.0 + (np.cumsum(rng.random((count, WORKERS)) < 0.08, axis=0) % 2)
    return 1000 / running * np.exp(rng.normal(0, 0.03, running.shape)), running[:, :, None]


def by_wall_clock(speed, barrier_s=0.0):
    """Start times of a job that ran with equal sizes."""
    lasted_s = (100 / speed).max(1) + barrier_s
    return np.repeat(np.concatenate(([0.0], np.cumsum(lasted_s)[:-1]))[:, None], speed.shape[1], axis=1)


def slowdown(world, policy: Callable, begin=0.0):
    bounds = world.bounds()
    best = play(world, bounds, Clairvoyant(bounds)).mean_s(begin)
    return play(world, bounds, policy(bounds)).mean_s(begin) / best


def managed(name, sensors=(), lookahead=0):
    return lambda bounds: Managed(bounds, name, sensors, lookahead, 2)


@pytest.mark.parametrize("name", ["last", "ema", "mean", "arx", "narx", "auto:background=false"])
@pytest.mark.parametrize("horizon", [1, 3])
def test_another_future_leaves_earlier_forecasts_unchanged(name, horizon):
    speed, sensors = speeds(0)
    now = 50
    told = forecast(World(recorded(speed, sensors=sensors)), name, horizon=horizon, train_steps=2).speed
    speed[now + 1 :] *= 3
    sensors[now + 2 :] += 5
    again = forecast(World(recorded(speed, sensors=sensors)), name, horizon=horizon, train_steps=2).speed
    np.testing.assert_array_equal(told[: now + horizon + 1], again[: now + horizon + 1])
    assert (told[now + horizon + 1 :] != again[now + horizon + 1 :]).any()


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("lookahead", [0, 2])
def test_another_future_leaves_earlier_sizes_unchanged(timed, lookahead):
    def sizes(change):
        speed, sensors = speeds(1)
        start_s = by_wall_clock(speed) if timed else None
        speed[60:] *= change
        sensors[61:] *= change
        world = World(recorded(speed, sensors=sensors, start_s=start_s))
        policy, seen = Managed(world.bounds(), "arx", ("running",), lookahead, 0), []
        heard = policy.heard
        policy.heard = lambda number, sizes, *rest: (seen.append(sizes.tolist()), heard(number, sizes, *rest))
        play(world, world.bounds(), policy)
        return seen

    plain, changed = sizes(1.0), sizes(0.25)
    same = next(number for number, pair in enumerate(zip(plain, changed, strict=False)) if pair[0] != pair[1])
    assert same > 60 + lookahead


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), timed=st.booleans())
def test_nothing_beats_the_clairvoyant_plan(seed, timed):
    speed, sensors = speeds(seed)
    world = World(recorded(speed, sensors=sensors, start_s=by_wall_clock(speed) if timed else None))
    for policy in (Equal, Static, managed("last", ("running",))):
        assert slowdown(world, policy) > 0.995


def test_workers_of_lasting_speeds_are_balanced_by_all_but_the_equal_split():
    world = World(recorded(np.tile([500.0, 1000.0, 1000.0, 1500.0], (80, 1))))
    assert slowdown(world, Equal) == pytest.approx(2.0, rel=0.01)
    assert slowdown(world, Static, 0.5) == pytest.approx(1.0, rel=0.01)
    assert slowdown(world, managed("last"), 0.5) == pytest.approx(1.0, rel=0.02)


def test_lookahead_costs_time():
    speed, _ = speeds(2, 200)
    world = World(recorded(speed))
    waits = [slowdown(world, managed("last", lookahead=lookahead), 0.2) for lookahead in (0, 2, 6)]
    assert waits == sorted(waits)
    assert waits[2] > waits[0] + 0.05


def test_forecast_errors_cost_more_the_larger_they_are():
    world = World(recorded(speeds(3)[0]))
    lost = [slowdown(world, lambda bounds, error=error: Clairvoyant(bounds, error, 7)) for error in (0, 0.1, 0.4)]
    assert lost[0] == pytest.approx(1.0)
    assert lost[0] < lost[1] < lost[2]


def test_by_the_wall_clock_equal_sizes_take_what_was_recorded():
    speed, _ = speeds(4)
    world = World(recorded(speed, start_s=by_wall_clock(speed)))
    played = play(world, world.bounds(), Equal(world.bounds()))
    np.testing.assert_allclose(played.time_s[:-1], (100 / speed).max(1)[: len(played.time_s) - 1], rtol=1e-6)


def test_by_the_wall_clock_a_faster_plan_does_more_iterations_in_the_same_time():
    speed, _ = speeds(5)
    world = World(recorded(speed, start_s=by_wall_clock(speed)))
    bounds = world.bounds()
    equal, best = (play(world, bounds, policy) for policy in (Equal(bounds), Clairvoyant(bounds)))
    assert len(best.time_s) > 1.1 * len(equal.time_s)
    assert best.time_s.sum() == pytest.approx(equal.time_s.sum(), rel=0.05)


def test_a_fixed_cost_is_told_from_sizes_that_vary():
    rng = np.random.default_rng(6)
    samples = rng.choice([50.0, 100.0, 200.0], (300, WORKERS))
    world = World(recorded(np.full((300, WORKERS), 1000.0), samples=samples, fixed=40.0))
    np.testing.assert_allclose(world.fixed, 40.0, rtol=0.3)


def test_gaps_late_joiners_and_one_worker():
    speed, _ = speeds(7)
    speed[10:20, 1] = np.nan
    speed[:30, 2] = np.nan
    world = World(recorded(speed))
    assert 1 < slowdown(world, managed("ema")) < 3
    assert np.isnan(forecast(world, "last").rmse_percent(world, 0.0)) == False  # noqa: E712
    alone = World(recorded(speed[:, :1]))
    assert slowdown(alone, managed("narx")) == pytest.approx(1.0)


def test_the_error_counts_only_the_tested_part():
    speed = np.full((100, WORKERS), 1000.0)
    speed[:50:2] = 500.0
    world = World(recorded(speed))
    told = forecast(world, "last")
    assert told.rmse_percent(world, 0.0, 0.5) > 50
    assert told.rmse_percent(world, 0.52) == pytest.approx(0.0)
    assert np.isnan(told.rmse_percent(world, 0.5, 0.5))
