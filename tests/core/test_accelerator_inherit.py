"""What was learnt of an accelerator follows it into a world of another size: the same time at the same samples."""

import numpy as np
import pytest

from lbbsp.core.accelerator import AcceleratorFit

SIZES = np.array([40, 80, 120, 200, 320])


def taught(reference: float, theta: float, knee: float) -> AcceleratorFit:
    """Two ranks, of which the second is half as fast; times in milliseconds follow max(x, knee) + theta."""
    fit = AcceleratorFit(2, reference)
    for number in range(200):
        samples = np.full(2, float(SIZES[number % len(SIZES)]))
        time_s = 1e-3 * (np.maximum(samples, knee) + theta) * np.array([1.0, 2.0])
        fit.learn(samples, time_s * (1.0 + 0.01 * np.sin(number)))
    return fit


def times(fit: AcceleratorFit, ranks: list[int]) -> np.ndarray:
    curves = fit.curves()
    many = len(fit.seen)
    return np.array([curves.time_s(np.full(many, size))[ranks] for size in SIZES])


@pytest.mark.parametrize("reference", [64.0, 100.0, 128.0, 192.0, 256.0])
@pytest.mark.parametrize(("theta", "knee"), [(0.0, 0.0), (32.0, 0.0), (20.0, 128.0), (10.0, 120.0), (60.0, 60.0)])
def test_the_curve_is_the_same_in_any_reference_size(reference, theta, knee):
    earlier = taught(128.0, theta, knee)
    later = AcceleratorFit(3, reference)
    later.inherit(np.array([2, 0]), earlier, np.array([0, 1]))
    expected, found = times(earlier, [0, 1]), times(later, [2, 0])
    assert np.abs(found / expected - 1.0).max() < (1e-12 if reference == 128.0 else 0.12), found / expected
    assert later.seen.tolist() == [True, False, True]
