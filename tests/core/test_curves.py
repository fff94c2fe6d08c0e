"""The fixed cost of a batch is found although sizes follow speed, and speeds are told apart from sizes."""

import numpy as np
import pytest

from lbbsp.core.curves import CurveFit

REFERENCE = 64.0


def fitted(theta, sizes, speeds, noise=0.0, seed=0):
    """One rank that processes sizes[k] at speeds[k]; the fixed cost that was found."""
    rng = np.random.default_rng(seed)
    fit = CurveFit(1, REFERENCE)
    for k, (size, speed) in enumerate(zip(sizes, speeds, strict=True)):
        time_s = (theta + size) / speed * np.exp(noise * rng.standard_normal())
        fit.learn(k, np.array([float(size)]), np.array([time_s]))
    return float(fit.theta_samples[0])


def test_while_one_size_is_known_time_is_a_plain_ratio():
    assert fitted(30, [64] * 50, [1000] * 50, noise=0.05) == 0.0


@pytest.mark.parametrize("theta", [0, 8, 32, 64, 128])
def test_sizes_that_change_at_steady_speed_tell_the_fixed_cost(theta):
    sizes = [64, 96, 80, 40] * 10
    assert fitted(theta, sizes, [1000] * 40, noise=0.02) == pytest.approx(theta, rel=0.15, abs=5)


@pytest.mark.parametrize("theta", [0, 32, 64])
def test_sizes_that_follow_speed_tell_it_too(theta):
    """The trap: the size halves one iteration after the speed did, so times look the same at all sizes."""
    speeds = np.where(np.arange(400) // 20 % 2, 500.0, 1000.0)
    sizes = [64, *((theta + 64) * speeds[:-1] / 1000 - theta).clip(1)]
    assert fitted(theta, sizes, speeds, noise=0.03) == pytest.approx(theta, rel=0.25, abs=8)


def test_bursts_that_the_sizes_answer_too_late_teach_nothing_false():
    rng = np.random.default_rng(3)
    speeds = np.where(rng.random(400) < 0.2, 300.0, 1000.0)
    sizes = np.concatenate([[64], 64 * speeds[:-1] / 1000])
    assert fitted(20, sizes, speeds, noise=0.02) == pytest.approx(20, abs=20)


@pytest.mark.parametrize("change", [0.25, 0.5, 2.0, 4.0])
@pytest.mark.parametrize("size", [16, 32, 128, 256])
def test_a_neighbour_that_comes_as_the_size_first_changes_is_no_fixed_cost(size, change):
    """Found in a replay: one such step told a fixed cost of three shares, and sizes swung to 15 times the time."""
    assert fitted(0, [64, size], [1000, 1000 * change]) < 0.4 * REFERENCE


def test_a_fixed_cost_that_changes_is_followed():
    fit = CurveFit(1, REFERENCE)
    for k in range(400):
        theta, size = (5 if k < 200 else 60), (64.0, 96.0, 48.0)[k % 3]
        fit.learn(k, np.array([size]), np.array([(theta + size) / 1000]))
        if k == 199:
            assert fit.theta_samples[0] == pytest.approx(5, abs=3)
    assert fit.theta_samples[0] == pytest.approx(60, rel=0.15)


def test_reports_far_apart_or_missing_teach_nothing():
    fit = CurveFit(2, REFERENCE)
    for k in range(0, 400, 20):
        size = 64.0 if k % 40 else 32.0
        fit.learn(k, np.array([size, np.nan]), np.array([(50 + size) / 1000, np.nan]))
    assert fit.theta_samples.tolist() == [0.0, 0.0]


def test_speed_at_the_reference_size_does_not_depend_on_the_size_reported():
    fit = CurveFit(3, REFERENCE)
    fit.theta_samples[:] = 16
    samples = np.array([32.0, 64.0, 128.0])
    speed = fit.speed(samples, (16 + samples) / 1000)
    assert speed == pytest.approx(np.full(3, 64 / 0.08))
    assert fit.curves(speed).time_s(samples.astype(int)) == pytest.approx((16 + samples) / 1000)
    assert fit.rescaled_s(np.full(3, 0.08), np.full(3, 64.0), samples) == pytest.approx((16 + samples) / 1000)


def test_no_samples_show_no_speed():
    assert np.isnan(CurveFit(1, REFERENCE).speed(np.array([0.0]), np.array([0.1]))[0])


def test_the_fit_follows_the_device():
    earlier, fit = CurveFit(2, REFERENCE), CurveFit(2, REFERENCE)
    for k in range(30):
        size = np.array([64.0, 96.0]) if k % 2 else np.array([96.0, 64.0])
        earlier.learn(k, size, (np.array([0, 50]) + size) / 1000)
    fit.inherit(np.array([0]), earlier, np.array([1]))
    assert fit.theta_samples.tolist() == [earlier.theta_samples[1], 0.0]
