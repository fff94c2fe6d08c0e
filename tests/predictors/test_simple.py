"""last, ema and mean: what each promises beyond the rules for all."""

import numpy as np
import pytest

from lbbsp.errors import ConfigError
from lbbsp.predictors import PREDICTORS, make
from lbbsp.predictors.base import Base

NONE = np.empty((2, 0))


def fed(predictor, *speeds):
    for speed in speeds:
        predictor.observe(np.array([speed, 2.0 * speed]), NONE)
    return predictor


def test_last_is_the_newest_report():
    assert fed(make("last", 2), 10, 30).predict(NONE).tolist() == [30, 60]


def test_ema_starts_as_a_mean_and_then_forgets():
    assert fed(make("ema", 2, alpha=0.25), 10, 20).predict(NONE)[0] == 15
    ema = fed(make("ema", 2, alpha=0.25), *[10] * 10, 20)
    assert ema.predict(NONE)[0] == pytest.approx(12.5)


def test_ema_smooths_more_at_longer_horizons():
    ema = fed(make("ema", 2, alpha=0.5), *[10] * 50, 20)
    ahead = [ema.predict(NONE, horizon)[0] for horizon in (1, 2, 4, 8, 100)]
    assert ahead == pytest.approx([10 + 10 * 0.5 / h**1.25 for h in (1, 2, 4, 8, 8)])


@pytest.mark.parametrize("alpha", [0.0, -1.0, 1.1])
def test_ema_refuses_an_alpha_that_is_no_share(alpha):
    with pytest.raises(ConfigError, match="alpha"):
        make("ema", 2, alpha=alpha)


def test_mean_weighs_every_iteration_alike():
    assert fed(make("mean", 2), 10, 20, 60).predict(NONE)[0] == pytest.approx(30)


def test_the_error_is_the_recent_share_by_which_forecasts_missed():
    assert fed(make("last", 2), 100, 50).error() == pytest.approx([1.0, 1.0])
    assert fed(make("last", 2), 100, 50, *[50] * 200).error() == pytest.approx([0, 0], abs=0.01)


def test_a_new_predictor_is_one_class_and_one_line(monkeypatch):
    class Toy(Base):
        name = "toy"
        newest = np.array([np.nan])

        def _learn(self, speed, sensors):
            self.newest = speed

        def _forecast(self, sensors, horizon):
            return self.newest + horizon

    monkeypatch.setitem(PREDICTORS, "toy", Toy)
    assert fed(make("toy", 2), 10).predict(NONE, 3).tolist() == [13, 23]


def test_options_follow_the_name():
    assert make("ema:alpha=0.25", 2).alpha == 0.25
    assert make("arima:order=2+1+0, background=false", 2).order == (2, 1, 0)


def test_an_unknown_option_is_named():
    with pytest.raises(ConfigError, match=r"'ema:alhpa=0.3': .*alhpa"):
        make("ema:alhpa=0.3", 2)
