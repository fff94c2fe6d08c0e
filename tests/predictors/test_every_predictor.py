"""Rules that every registered predictor keeps."""

import copy
import pickle

import numpy as np
import pytest

from lbbsp.errors import ConfigError
from lbbsp.predictors import PREDICTORS, make
from lbbsp.predictors.inputs import Spread

WORKERS, SENSORS = 5, 2
OPTIONS = {"arima": {"background": False}, "auto": {"background": False}}
every = pytest.mark.parametrize("name", PREDICTORS)


@pytest.fixture
def history():
    """Speeds (iterations, workers) of a slow walk, and sensors (iterations, workers, sensors)."""
    rng = np.random.default_rng(7)
    walk = np.exp(np.cumsum(rng.normal(0, 0.05, (60, WORKERS)), axis=0))
    return 100 * walk, rng.normal(0, 1, (60, WORKERS, SENSORS))


def made(name, workers=WORKERS, sensors=SENSORS, **more):
    return make(name, workers, sensors, **OPTIONS.get(name, {}), **more)


def fed(name, speeds, sensors, **more):
    predictor = made(name, **more)
    for speed, reading in zip(speeds, sensors, strict=True):
        predictor.observe(speed, reading)
        predictor.train(steps(2))
    return predictor


def steps(count):
    left = iter(range(count))
    return lambda: next(left, None) is not None


@every
@pytest.mark.parametrize("horizon", [1, 3, 50])
def test_predicts_before_it_has_seen_anything(name, horizon):
    forecast = made(name).predict(np.full((WORKERS, SENSORS), np.nan), horizon)
    assert forecast.shape == (WORKERS,)
    assert np.isfinite(forecast).all()
    assert (forecast > 0).all()


@every
@pytest.mark.parametrize("horizon", [1, 2, 8])
def test_predict_changes_nothing(name, history, horizon):
    predictor = fed(name, *history)
    first = predictor.predict(history[1][-1], horizon)
    predictor.predict(history[1][0], 1)
    np.testing.assert_array_equal(first, predictor.predict(history[1][-1], horizon))


@every
def test_a_caller_may_reuse_and_change_its_arrays(name, history):
    predictor = fed(name, *history)
    speed, sensors = history[0][-1].copy(), history[1][-1].copy()
    predictor.observe(speed, sensors)
    forecast = predictor.predict(sensors)
    kept = forecast.copy()
    speed[:] = np.nan
    forecast[:] = -1
    np.testing.assert_array_equal(predictor.predict(sensors), kept)


@every
def test_a_permutation_of_workers_permutes_the_forecast(name, history):
    order = np.array([3, 0, 4, 1, 2])
    speeds, sensors = history
    plain = fed(name, speeds, sensors).predict(sensors[-1], 2)
    permuted = fed(name, speeds[:, order], sensors[:, order]).predict(sensors[-1][order], 2)
    np.testing.assert_allclose(permuted, plain[order], rtol=1e-5)


@every
def test_speeds_in_another_unit_give_the_same_forecast_in_that_unit(name, history):
    speeds, sensors = history
    plain = fed(name, speeds, sensors).predict(sensors[-1], 1)
    np.testing.assert_allclose(fed(name, speeds * 1e4, sensors).predict(sensors[-1], 1), plain * 1e4, rtol=1e-4)


@every
@pytest.mark.parametrize("bad", [np.nan, 0.0, -1.0, np.inf])
def test_reports_that_say_nothing_keep_a_worker_s_forecast_usable(name, history, bad):
    speeds, sensors = history
    predictor = fed(name, speeds, sensors)
    before = predictor.predict(sensors[-1])
    speed = speeds[-1].copy()
    for _ in range(10):
        speed[2] = bad
        predictor.observe(speed, np.full((WORKERS, SENSORS), np.nan))
    after = predictor.predict(np.full((WORKERS, SENSORS), np.nan))
    assert np.isfinite(after).all()
    assert 0.3 < after[2] / before[2] < 3


@every
def test_a_worker_that_joins_late_is_forecast(name, history):
    speeds, sensors = history[0].copy(), history[1]
    speeds[:40, 1] = np.nan
    forecast = fed(name, speeds, sensors).predict(sensors[-1])
    assert 0.3 < forecast[1] / speeds[-1, 1] < 3


@every
def test_memory_is_bounded(name, history):
    rng = np.random.default_rng(1)

    def size_after(iterations):
        speeds = rng.uniform(50, 100, (iterations, WORKERS))
        return len(pickle.dumps(fed(name, speeds, np.zeros((iterations, WORKERS, SENSORS)))))

    assert size_after(1200) < 1.02 * size_after(600) + 4096


@every
def test_pickles(name, history):
    predictor = fed(name, *history)
    again = pickle.loads(pickle.dumps(predictor))
    np.testing.assert_array_equal(again.predict(history[1][-1], 3), predictor.predict(history[1][-1], 3))
    again.observe(history[0][0], history[1][0])


@every
def test_clones_are_independent(name, history):
    predictor = fed(name, *history)
    before = predictor.predict(history[1][-1])
    clone = copy.deepcopy(predictor)
    for _ in range(20):
        clone.observe(history[0][-1] * 3, history[1][-1])
        clone.train(steps(1))
    np.testing.assert_array_equal(predictor.predict(history[1][-1]), before)
    assert (clone.predict(history[1][-1]) > before * 1.1).all()


@every
@pytest.mark.parametrize("horizon", [1, 4])
def test_a_constant_speed_is_learned(name, horizon):
    speeds = np.tile(np.linspace(10, 200, WORKERS), (50, 1))
    sensors = np.random.default_rng(2).normal(size=(50, WORKERS, SENSORS))
    predictor = fed(name, speeds, sensors)
    np.testing.assert_allclose(predictor.predict(sensors[-1], horizon), speeds[0], rtol=0.01)
    assert (predictor.error() < 0.02).all()


@every
def test_the_same_history_gives_the_same_forecast(name, history):
    np.testing.assert_array_equal(
        fed(name, *history).predict(history[1][-1], 2), fed(name, *history).predict(history[1][-1], 2)
    )


@every
def test_the_error_is_kept_at_the_horizon_that_is_asked_for(name, history):
    near, far = fed(name, *history), fed(name, *history, horizon=8)
    assert np.isfinite(far.error()).all()
    if name != "mean":
        assert far.error().mean() > near.error().mean()


@every
@pytest.mark.parametrize("workers", [1, 300])
def test_any_number_of_workers_without_a_sensor(name, workers):
    predictor = made(name, workers, 0)
    for _ in range(30):
        predictor.observe(np.full(workers, 12.0), np.empty((workers, 0)))
        predictor.train(steps(1))
    np.testing.assert_allclose(predictor.predict(np.empty((workers, 0))), 12.0, rtol=0.01)
    assert len(predictor.in_charge()) == workers


@every
def test_a_wrong_shape_is_named(name):
    with pytest.raises(ValueError, match=r"shape \(5,\), got \(4,\)"):
        made(name).observe(np.ones(4), np.ones((WORKERS, SENSORS)))
    with pytest.raises(ValueError, match="horizon 0"):
        made(name).predict(np.ones((WORKERS, SENSORS)), 0)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"unknown predictor 'nrax'; known: .*ema.*last"):
        make("nrax", 3)


@every
@pytest.mark.parametrize("reading", [0.0, 1.0, 0.1, 1e9])
def test_readings_and_speeds_that_never_change_are_no_fault(name, reading):
    predictor = fed(name, np.full((400, WORKERS), 1000 / 3), np.full((400, WORKERS, SENSORS), reading))
    np.testing.assert_allclose(predictor.predict(np.full((WORKERS, SENSORS), reading)), 1000 / 3, rtol=1e-3)


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("reading", [0.0, 0.1, 0.7, 1.0, 3.0, 1e9])
def test_what_never_changes_has_no_spread_below_zero(workers, reading):
    spread, alike = Spread(1), np.full((workers, 1), np.log1p(reading))
    for _ in range(50):
        spread.learn(alike)
        assert spread.variance[0] >= 0.0
    np.testing.assert_allclose(spread.scaled(alike), 0.0, atol=1e-6)
