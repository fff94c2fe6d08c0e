"""A predictor that raises or forecasts nonsense never breaks a job: the last speed steps in, counted."""

import numpy as np
import pytest

from lbbsp.core.forecast import Forecaster
from lbbsp.errors import ConfigError
from lbbsp.predictors import PREDICTORS

NONE = np.empty((3, 0))
SPEED = np.array([100.0, 200.0, np.nan])


class Odd:
    """Forecasts what it is told to."""

    def __init__(self, answer):
        self.answer = answer

    def observe(self, speed, sensors):
        speed[:] = -1

    def predict(self, sensors, horizon=1):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def in_charge(self):
        return ("odd", "odd", "even")


@pytest.fixture
def with_answer(monkeypatch):
    def make(answer):
        monkeypatch.setattr("lbbsp.core.forecast.make", lambda *args, **options: Odd(answer))
        forecaster = Forecaster("odd", 3, 0, 1)
        forecaster.observe(SPEED, NONE)
        return forecaster

    return make


@pytest.mark.parametrize(
    ("answer", "stepped_in"),
    [
        (RuntimeError("no"), 2),
        (np.array([np.nan, np.inf, 1.0]), 2),
        (np.array([0.0, -3.0, 1.0]), 2),
        (np.array([1e-9, 1e30, 1.0]), 2),
        (np.array([1.0, 2.0]), 1),
        (None, 1),
    ],
)
def test_the_last_speed_steps_in(with_answer, answer, stepped_in, caplog):
    forecaster = with_answer(answer)
    assert forecaster.forecast(NONE).tolist() == [100.0, 200.0, 150.0]
    assert forecaster.stepped_in == stepped_in


def test_only_the_nonsense_is_replaced(with_answer):
    assert with_answer(np.array([120.0, np.nan, 7.0])).forecast(NONE).tolist() == [120.0, 200.0, 160.0]


def test_a_predictor_that_writes_into_its_input_changes_nothing(with_answer):
    forecaster = with_answer(np.array([1.0, 1.0, 1.0]))
    assert forecaster.last.tolist()[:2] == [100.0, 200.0]
    assert SPEED[0] == 100.0


def test_who_is_in_charge_is_told_with_shares(with_answer):
    assert with_answer(None).in_charge() == "odd 67%, even 33%"


@pytest.mark.parametrize("name", PREDICTORS)
def test_nothing_is_forecast_before_a_speed_was_seen(name):
    forecaster = Forecaster(name, 3, 0, 2)
    assert forecaster.forecast(NONE) is None
    forecaster.observe(np.full(3, np.nan), NONE)
    assert forecaster.forecast(NONE) is None
    forecaster.observe(SPEED, NONE)
    assert np.isfinite(forecaster.forecast(NONE)).all()
    assert forecaster.stepped_in == 0
    assert forecaster.in_charge()


def test_an_unknown_predictor_is_named():
    with pytest.raises(ConfigError, match="known: "):
        Forecaster("oracle", 2, 0, 1)


class Raising(Odd):
    @property
    def expect_mean_of(self):
        raise RuntimeError("no")


@pytest.mark.parametrize("wrong", [5, lambda: None, lambda *arguments: 1 / 0, None])
def test_a_predictor_whose_ear_for_means_is_no_good_is_counted_and_stops_nothing(monkeypatch, wrong):
    odd = Odd(SPEED + 1.0)
    odd.expect_mean_of = wrong
    for answer in (odd, Raising(SPEED + 1.0)):
        monkeypatch.setattr("lbbsp.core.forecast.make", lambda *args, answer=answer, **options: answer)
        forecaster = Forecaster("odd", 3, 0, 1)
        forecaster.observe(SPEED, NONE, 16)
        assert forecaster.stepped_in == (0 if answer is odd and wrong is None else 1)
        assert np.isfinite(forecaster.forecast(NONE)).all()


@pytest.mark.parametrize(("iterations", "horizon", "observed"), [(1, 1, 1), (20, 1, 1), (3, 9, 3), (20, 9, 9)])
def test_a_predictor_hears_of_how_many_iterations_it_sees_the_mean(monkeypatch, iterations, horizon, observed):
    heard = []

    class Hearing(Odd):
        def expect_mean_of(self, iterations):
            heard.append(iterations)

        def observe(self, speed, sensors):
            heard.append("observed")

    monkeypatch.setattr("lbbsp.core.forecast.make", lambda *args, **options: Hearing(SPEED))
    Forecaster("hearing", 3, 0, horizon).observe(SPEED, NONE, iterations)
    assert heard == [iterations] + ["observed"] * observed
