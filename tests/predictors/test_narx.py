"""narx: spikes and steps, sensors, closed loop, what it learnt, and a budget it keeps."""

import numpy as np
import pytest

from lbbsp.errors import ConfigError
from lbbsp.predictors import make

WORKERS = 8


def steps(count):
    left = iter(range(count))
    return lambda: next(left, None) is not None


def trained(speeds, sensors=None, **options):
    sensors = np.empty((*speeds.shape, 0)) if sensors is None else sensors
    narx = make("narx", speeds.shape[1], sensors.shape[2], **options)
    for speed, reading in zip(speeds, sensors, strict=True):
        narx.observe(speed, reading)
        narx.train(steps(10))
    return narx


def noisy(rng, level, noise, count=150):
    return level * np.exp(rng.normal(0, noise, (count, WORKERS)))


def with_neighbours(rng, count=250):
    """Speed is halved while a neighbour runs; the sensor counts what runs, just before the iteration."""
    running = 1.0 + (np.cumsum(rng.random((count + 1, WORKERS)) < 0.1, axis=0) % 2)
    speeds = 100 / running[:-1] * np.exp(rng.normal(0, 0.02, (count, WORKERS)))
    return speeds, running[1:, :, None]


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("height", [0.3, 0.6, 1.8])
def test_a_spike_moves_the_forecast_by_under_a_fifth_of_its_height(noise, height):
    narx = trained(noisy(np.random.default_rng(3), 100, noise))
    before = narx.predict(np.empty((WORKERS, 0)))
    narx.observe(np.full(WORKERS, 100 * height), np.empty((WORKERS, 0)))
    moved = narx.predict(np.empty((WORKERS, 0))) - before
    assert np.abs(moved.mean() / (100 * (height - 1))) < 0.2


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05])
@pytest.mark.parametrize("height", [0.3, 0.6, 1.8])
def test_a_lasting_step_is_followed_within_five_iterations(noise, height):
    rng = np.random.default_rng(4)
    narx = trained(noisy(rng, 100, noise))
    for speed in noisy(rng, 100 * height, noise, 5):
        narx.observe(speed, np.empty((WORKERS, 0)))
        narx.train(steps(10))
    forecast = narx.predict(np.empty((WORKERS, 0)))
    assert forecast.mean() == pytest.approx(100 * height, rel=0.1)


def test_steps_that_use_to_last_are_followed_at_once():
    rng = np.random.default_rng(5)
    level = 100 / (1 + (np.cumsum(rng.random((300, WORKERS)) < 0.05, axis=0) % 2))
    narx = trained(level * np.exp(rng.normal(0, 0.02, level.shape)))
    before = narx.predict(np.empty((WORKERS, 0)))
    other = 150 - level[-1]
    narx.observe(other, np.empty((WORKERS, 0)))
    moved = (narx.predict(np.empty((WORKERS, 0))) - before) / (other - before)
    assert moved.mean() > 0.7


def test_a_sensor_read_at_the_barrier_tells_what_past_speeds_cannot():
    speeds, sensors = with_neighbours(np.random.default_rng(6))
    seeing, blind = trained(speeds, sensors), trained(speeds)
    assert seeing.error().mean() < 0.5 * blind.error().mean()


def test_a_missing_sensor_is_no_reading_of_zero():
    speeds, sensors = with_neighbours(np.random.default_rng(7))
    narx = trained(speeds, sensors)
    forecast = narx.predict(np.full((WORKERS, 1), np.nan))
    assert np.isfinite(forecast).all()
    assert (np.abs(np.log(forecast / speeds[-1])) < np.log(2.5)).all()


@pytest.mark.parametrize("horizon", [1, 8, 500])
def test_forecasts_stay_within_the_speeds_seen(horizon):
    speeds, sensors = with_neighbours(np.random.default_rng(8))
    forecast = trained(speeds, sensors).predict(np.full((WORKERS, 1), 1e9), horizon)
    assert (forecast >= speeds.min(0) * 0.999).all()
    assert (forecast <= speeds.max(0) * 1.001).all()


def test_what_was_learnt_starts_another_run(tmp_path):
    speeds, sensors = with_neighbours(np.random.default_rng(9))
    np.savez(tmp_path / "learnt.npz", **trained(speeds, sensors).learnt())
    fresh, started = make("narx", WORKERS, 1), make("narx", WORKERS, 1)
    with np.load(tmp_path / "learnt.npz") as learnt:
        started.start_from(learnt)
    for speed, reading in zip(speeds[:40], sensors[:40], strict=True):
        fresh.observe(speed, reading)
        started.observe(speed, reading)
    assert started.error().mean() < 0.6 * fresh.error().mean()


def test_what_another_network_learnt_is_refused():
    with pytest.raises(ConfigError, match=r"w1 have shape \(6, 8\), this network wants \(8, 8\)"):
        make("narx", WORKERS, 2).start_from(make("narx", WORKERS).learnt())


def test_training_ends_when_it_is_told_to():
    speeds, sensors = with_neighbours(np.random.default_rng(10))
    narx = trained(speeds, sensors)
    asked = []
    narx.train(lambda: asked.append(1) or len(asked) < 8)
    assert len(asked) == 8


def test_another_seed_is_another_network_and_the_same_seed_the_same():
    speeds, sensors = with_neighbours(np.random.default_rng(11), 100)
    one, again, other = (trained(speeds, sensors, seed=seed).predict(sensors[-1]) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_where_speeds_are_plain_noise_the_guard_keeps_it_near_the_average():
    rng = np.random.default_rng(12)
    speeds = noisy(rng, 100, 0.2, 300)
    narx, ema = trained(speeds), make("ema", WORKERS, alpha=0.05)
    for speed in speeds:
        ema.observe(speed, np.empty((WORKERS, 0)))
    assert narx.error().mean() < 1.15 * ema.error().mean()
