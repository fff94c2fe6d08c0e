"""arx: the linear law behind speeds and sensors is found, per worker, and followed when it changes."""

import numpy as np
import pytest

from lbbsp.predictors import make

WORKERS = 4


def ruled_by_a_sensor(rng, weights, count):
    """log speed = weight of the worker times a reading at the barrier before."""
    readings = rng.normal(0, 1, (count + 1, WORKERS))
    log_speed = weights * np.sign(readings[:-1]) * np.log1p(np.abs(readings[:-1]))
    return 100 * np.exp(log_speed), readings[1:, :, None]


def test_each_worker_has_a_law_of_its_own():
    rng = np.random.default_rng(0)
    speeds, sensors = ruled_by_a_sensor(rng, np.array([0.0, 0.2, -0.2, 0.4]), 300)
    arx = make("arx", WORKERS, 1)
    for speed, reading in zip(speeds, sensors, strict=True):
        arx.observe(speed, reading)
    assert (arx.error() < 0.03).all()


def test_a_law_that_changes_is_forgotten():
    rng = np.random.default_rng(1)
    forgetful, faithful = (make("arx", WORKERS, 1, forgetting=share) for share in (0.98, 1.0))
    for weight in (0.3, -0.3):
        speeds, sensors = ruled_by_a_sensor(rng, np.full(WORKERS, weight), 300)
        for speed, reading in zip(speeds, sensors, strict=True):
            forgetful.observe(speed, reading)
            faithful.observe(speed, reading)
    assert (forgetful.error() < 0.75 * faithful.error()).all()


@pytest.mark.parametrize("horizon", [1, 50])
def test_a_wild_reading_moves_no_forecast_out_of_reason(horizon):
    rng = np.random.default_rng(2)
    speeds, sensors = ruled_by_a_sensor(rng, np.full(WORKERS, 0.3), 200)
    arx = make("arx", WORKERS, 1)
    for speed, reading in zip(speeds, sensors, strict=True):
        arx.observe(speed, reading)
    forecast = arx.predict(np.full((WORKERS, 1), 1e30), horizon)
    assert (forecast <= 1.001 * speeds.max(0)).all()
