"""arima: fits in the background, steps in arrays, and goes on where a fit fails."""

import logging
import pickle
import time

import numpy as np
import pytest

import lbbsp.predictors.arima as arima_module
from lbbsp.errors import ConfigError
from lbbsp.predictors import make

NONE = np.empty((3, 0))


def swinging(count, seed=0):
    """log speed follows an autoregression with coefficient 0.8 around log 100."""
    rng = np.random.default_rng(seed)
    log_speed = np.zeros((count, 3))
    for now in range(1, count):
        log_speed[now] = 0.8 * log_speed[now - 1] + rng.normal(0, 0.1, 3)
    return 100 * np.exp(log_speed)


def fed(arima, speeds):
    for speed in speeds:
        arima.observe(speed, NONE)
    return arima


def test_the_law_is_found():
    arima = fed(make("arima", 3, order=(1, 0, 0), background=False, refit=50), swinging(240))
    assert arima._coefficients[1] == pytest.approx([0.8] * 3, abs=0.15)
    newest = swinging(240)[-1]
    expected = np.exp(arima._coefficients[0] + 0.8**2 * (np.log(newest) - arima._coefficients[0]))
    np.testing.assert_allclose(arima.predict(NONE, 2), expected, rtol=0.1)


def test_one_step_of_the_recursion_is_statsmodels_own_forecast():
    from statsmodels.tsa.arima.model import ARIMA

    speeds = swinging(139)
    arima = fed(make("arima", 3, order=(1, 1, 1), background=False, refit=99), speeds)
    for worker in range(3):
        model = ARIMA(np.log(speeds[:, worker]), order=(1, 1, 1), trend="n")
        theirs = model.smooth([*arima._coefficients[1:, worker], 0.01]).forecast(1)
        assert np.log(arima.predict(NONE)[worker]) == pytest.approx(float(theirs[0]), abs=0.01)


def test_a_fit_in_the_background_is_taken_when_it_is_done():
    arima = fed(make("arima", 3, refit=10), swinging(60))
    deadline = time.monotonic() + 60
    while not arima._fitted.all() and time.monotonic() < deadline:
        time.sleep(0.01)
        fed(arima, swinging(1))
    assert arima._fitted.all()


def test_a_fit_that_fails_is_counted_logged_with_its_reason_and_changes_nothing(monkeypatch, caplog):
    def no_fit(column, order, start):
        return "LinAlgError: it is singular"

    monkeypatch.setattr(arima_module, "fit_one", no_fit)
    with caplog.at_level(logging.WARNING):
        arima = fed(make("arima", 3, background=False), swinging(60))
    assert arima.failed_fits == 3
    assert "LinAlgError: it is singular" in caplog.text
    np.testing.assert_allclose(arima.predict(NONE), swinging(60)[-1], rtol=0.5)


def test_a_fit_that_raises_fails_by_name(monkeypatch):
    from statsmodels.tsa.arima.model import ARIMA

    def singular(self, **options):
        raise np.linalg.LinAlgError("singular")

    monkeypatch.setattr(ARIMA, "fit", singular)
    assert arima_module.fit_one(swinging(60)[:, 0], (1, 0, 0), np.array([0.0, 0.5])) == "LinAlgError: singular"


def test_a_constant_or_short_series_is_not_fitted():
    assert "has not changed" in arima_module.fit_one(np.full(60, 3.0), (1, 1, 1), np.zeros(3))
    assert "too few" in arima_module.fit_one(np.full(60, np.nan), (1, 1, 1), np.zeros(3))


def test_large_jobs_take_turns_and_the_rest_uses_the_typical_fit():
    arima = make("arima", 20, background=False, order=(1, 0, 0), refit=30)
    speeds = np.tile(swinging(69), (1, 7))[:, :20]
    for speed in speeds:
        arima.observe(speed, np.empty((20, 0)))
    assert arima._fitted.sum() == 8
    assert np.unique(arima._coefficients[1, ~arima._fitted]).size == 1


def test_a_pickle_leaves_the_thread_behind():
    arima = fed(make("arima", 3, refit=10), swinging(60))
    again = pickle.loads(pickle.dumps(arima))
    fed(again, swinging(30))
    assert np.isfinite(again.predict(NONE)).all()


@pytest.mark.parametrize("order", [(1, 2, 1), (6, 0, 0), (1, 1), (-1, 0, 0)])
def test_an_order_that_is_not_stepped_is_named(order):
    with pytest.raises(ConfigError, match="arima order"):
        make("arima", 3, order=order)
