"""ARIMA of log speed: statsmodels fits a few workers at a time in a background thread; one recursion steps all.

Between fits an iteration costs a few array operations. Workers that were never fitted use the median of those
that were; before any fit the coefficients are those of an exponential average. A fit that fails keeps what was
there, is counted and logged with its reason. Needs the extra lbbsp[arima].
"""

import importlib.util
import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from lbbsp.errors import ConfigError
from lbbsp.predictors.base import Array, Base, IntArray

log = logging.getLogger(__name__)

WINDOW = 200
"""Iterations that a fit looks at."""

FIRST_FIT = 40
"""Iterations before the first fit."""

AT_ONCE = 8
"""Workers fitted in one go; larger jobs take turns."""

DIGITS = 9
"""Decimals of what is fitted: an optimiser cut short makes more of a rounding than one would think."""

MOST = 2.0
"""A forecast lies within this distance of the newest log speed."""

Fits = list[Array | str]
"""Per worker: constant, then autoregressive, then moving-average coefficients; or why the fit failed."""


class Arima(Base):
    """order: (p, d, q) with d 0 or 1; refit: iterations between fits; background=False fits in observe()."""

    name = "arima"
    reads_sensors = False

    def __init__(
        self,
        workers: int,
        sensors: int = 0,
        *,
        horizon: int = 1,
        order: Sequence[int] = (1, 1, 1),
        refit: int = 100,
        background: bool = True,
    ) -> None:
        super().__init__(workers, sensors, horizon=horizon)
        check(order)
        self.order = p, d, q = tuple(order)
        self.refit = refit
        self.background = background
        self.failed_fits = 0
        self._levels: Array = np.full((WINDOW, workers), np.nan)
        self._moves: Array = np.zeros((p, workers))
        self._errors: Array = np.zeros((q, workers))
        self._coefficients: Array = np.tile(starting(p, d, q)[:, None], workers)
        self._fitted = np.zeros(workers, dtype=bool)
        self._seen = 0
        self._turn = 0
        self._asked: tuple[IntArray, Future[Fits]] | None = None
        self._threads: ThreadPoolExecutor | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the thread and what it works on."""
        return {**self.__dict__, "_threads": None, "_asked": None}

    def _learn(self, speed: Array, sensors: Array) -> None:
        log_speed = np.log(speed)
        self._step(log_speed)
        held = np.where(np.isnan(log_speed), self._newest, log_speed)
        self._seen += 1
        self._levels[self._seen % WINDOW] = held
        self._adopt()
        if self._seen >= FIRST_FIT and (self._seen - FIRST_FIT) % self.refit == 0:
            self._ask()

    def _step(self, log_speed: Array) -> None:
        move = log_speed - self._newest if self.order[1] else log_speed
        self._moves, self._errors = stepped(self._coefficients, self._moves, self._errors, move)

    @property
    def _newest(self) -> Array:
        newest: Array = self._levels[self._seen % WINDOW]
        return newest

    def _window(self, chosen: IntArray) -> Array:
        """Log speeds of some workers, oldest first; what lies before the first is NaN."""
        return np.roll(self._levels[:, chosen], -1 - self._seen % WINDOW, axis=0)

    def _forecast(self, sensors: Array, horizon: int) -> Array:
        newest = self._newest
        level, moves, errors = newest, self._moves, self._errors
        for _ in range(horizon):
            move = expected(self._coefficients, moves, errors)
            level = level + move if self.order[1] else move
            moves, errors = shifted(moves, move), shifted(errors, np.zeros(self.workers))
        return np.exp(np.clip(level, newest - MOST, newest + MOST))

    def _ask(self) -> None:
        if self._asked is not None:
            return
        chosen = np.unique((self._turn + np.arange(min(AT_ONCE, self.workers))) % self.workers)
        self._turn = (self._turn + AT_ONCE) % self.workers
        series, start = self._window(chosen), self._coefficients[:, chosen].copy()
        if not self.background:
            self._take(chosen, fit_all(series, self.order, start))
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, thread_name_prefix="lbbsp-arima")
        self._asked = chosen, self._threads.submit(fit_all, series, self.order, start)

    def _adopt(self) -> None:
        if self._asked is not None and self._asked[1].done():
            chosen, future = self._asked
            self._asked = None
            self._take(chosen, future.result())

    def _take(self, chosen: IntArray, fits: Fits) -> None:
        for worker, fit in zip(chosen.tolist(), fits, strict=True):
            if isinstance(fit, str):
                self.failed_fits += 1
                log.warning("arima keeps worker %d's earlier coefficients: %s", worker, fit)
            else:
                self._coefficients[:, worker] = fit
                self._fitted[worker] = True
        self._rerun(chosen)
        if self._fitted.any() and not self._fitted.all():
            typical = np.median(self._coefficients[:, self._fitted], axis=1)
            self._coefficients[1:, ~self._fitted] = typical[1:, None]

    def _rerun(self, chosen: IntArray) -> None:
        """Errors under new coefficients: those under the old ones would mislead for long."""
        levels, coefficients = self._window(chosen), self._coefficients[:, chosen]
        moves, errors = np.zeros_like(self._moves[:, chosen]), np.zeros_like(self._errors[:, chosen])
        moves += coefficients[0]
        for move in np.diff(levels, axis=0) if self.order[1] else levels:
            moves, errors = stepped(coefficients, moves, errors, move)
        self._moves[:, chosen], self._errors[:, chosen] = moves, errors


def check(order: Sequence[int]) -> None:
    """Raise ConfigError where the order is none that we step, or statsmodels is missing."""
    if len(order) != 3 or not (0 <= order[0] <= 5 and 0 <= order[1] <= 1 and 0 <= order[2] <= 5):
        raise ConfigError(f"arima order {tuple(order)}: wanted p, d, q with p and q from 0 to 5 and d 0 or 1")
    if importlib.util.find_spec("statsmodels") is None:
        raise ConfigError("predictor 'arima' needs statsmodels: pip install 'lbbsp[arima]'")


def starting(p: int, d: int, q: int) -> Array:
    """Coefficients before any fit: with d = 1 an exponential average with share 1/2, else the newest speed."""
    ar, ma = np.zeros(p), np.zeros(q)
    if d and q:
        ma[0] = -0.5
    if not d and p:
        ar[0] = 0.99
    return np.concatenate(([0.0], ar, ma))


def expected(coefficients: Array, moves: Array, errors: Array) -> Array:
    """The next move of each worker, given its newest moves and errors."""
    constant, ar, ma = np.split(coefficients, (1, 1 + len(moves)))
    following: Array = constant[0] + (ar * (moves - constant)).sum(0) + (ma * errors).sum(0)
    return following


def stepped(coefficients: Array, moves: Array, errors: Array, move: Array) -> tuple[Array, Array]:
    """Newest moves and errors once `move` was seen; a worker whose move is NaN keeps its own."""
    return shifted(moves, move), shifted(errors, move - expected(coefficients, moves, errors))


def shifted(rows: Array, newest: Array) -> Array:
    """Rows with `newest` in front and the oldest dropped; a worker whose newest is NaN keeps its rows."""
    if not len(rows):
        return rows
    return np.where(np.isnan(newest), rows, np.concatenate((newest[None], rows[:-1])))


def fit_all(series: Array, order: Sequence[int], start: Array) -> Fits:
    """Fit each column of series (iterations, workers); start (coefficients, workers) says where to begin."""
    return [fit_one(column, order, first) for column, first in zip(series.T, start.T, strict=True)]


def fit_one(column: Array, order: Sequence[int], start: Array) -> Array | str:
    """Constant and coefficients of one worker's log speeds, or the reason why there are none."""
    from statsmodels.tsa.arima.model import ARIMA

    column = column[np.isfinite(column)]
    if len(column) < FIRST_FIT // 2:
        return f"{len(column)} log speeds are too few"
    spread = float(column.std())
    if spread < 1e-9:
        return "its speed has not changed"
    p, d, q = order
    middle = float(column[0] if d else column.mean())
    standard = ((column - middle) / spread).round(DIGITS)
    begin = [*start[1:], float(np.diff(standard, d).var()) + 1e-6]
    try:
        model = ARIMA(standard, order=(p, d, q), trend="n")
        fitted = model.fit(start_params=begin, method_kwargs={"warn_convergence": False, "maxiter": 30, "disp": 0})
    except (ValueError, np.linalg.LinAlgError) as error:
        return f"{type(error).__name__}: {error}"
    found = np.concatenate(([0.0 if d else middle], fitted.params[: p + q]))
    return found if np.isfinite(found).all() else f"coefficients {found} are not finite"
