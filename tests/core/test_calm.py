"""Forecasts of a rank that only jitters stand still; a jump is followed at once; real changes are not smoothed."""

import numpy as np
import pytest

from lbbsp.core.calm import Calm


def settled(forecasts, speeds, horizon=1):
    """What comes out for one rank, whose speed at k was forecast `horizon` iterations before."""
    calm = Calm(1, horizon)
    out = [float(calm.settle(np.array([f]), np.array([s]))[0]) for f, s in zip(forecasts, speeds, strict=True)]
    return np.array(out), calm


def test_noise_is_averaged_out():
    speeds = 1000 * np.exp(0.05 * np.random.default_rng(0).standard_normal(300))
    out, _ = settled(speeds, speeds)
    assert np.abs(out[100:] / 1000 - 1).max() < 0.03
    assert np.abs(np.diff(out[100:])).max() < 10


def test_the_first_forecast_is_taken_as_it_is():
    assert settled([700.0], [700.0])[0][0] == pytest.approx(700)


@pytest.mark.parametrize("factor", [0.5, 2.0, 0.8])
def test_a_jump_is_followed_at_once(factor):
    rng = np.random.default_rng(1)
    speeds = np.where(np.arange(200) < 150, 1000, 1000 * factor) * np.exp(0.02 * rng.standard_normal(200))
    out, _ = settled(speeds, speeds)
    assert out[150] == pytest.approx(1000 * factor, rel=0.07)


def test_a_jump_seen_through_an_average_is_followed_all_the_way():
    speeds = np.where(np.arange(120) < 60, 1000.0, 500.0)
    average = [1000.0]
    for speed in speeds[1:]:
        average.append(average[-1] + 0.5 * (speed - average[-1]))
    out, _ = settled(average, speeds)
    assert out[75] == pytest.approx(500, rel=0.01)


def test_changes_that_the_forecast_knows_are_not_smoothed():
    """A slow wave of 20 %: the forecast is right each time, a mean over many iterations would not be."""
    wave = 1000 * np.exp(0.2 * np.sin(np.arange(300) / 15))
    out, _ = settled(np.append(wave[1:], wave[-1]), wave)
    assert np.abs(out[100:-1] / wave[101:] - 1).max() < 0.06


def test_errors_are_those_at_the_horizon():
    speeds = np.where(np.arange(400) // 4 % 2, 1000.0, 800.0)
    ahead = np.append(speeds[4:], [1000.0] * 4)
    assert settled(ahead, speeds, horizon=4)[1].usual_error[0] < 0.01
    assert settled(ahead, speeds, horizon=2)[1].usual_error[0] > 0.05


def test_no_report_changes_no_error_and_no_mean():
    _, calm = settled([1000.0] * 5, [1000.0] * 5)
    before = calm.usual_error.copy()
    assert calm.settle(np.array([1000.0]), np.array([np.nan]))[0] == pytest.approx(1000)
    assert (calm.usual_error == before).all()
