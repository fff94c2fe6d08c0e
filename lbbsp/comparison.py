"""Which predictor would have lost least time on a recorded job, and is it worth it? For Python: compare(), as_frame().

Every row is the same job under other sizes: predictors through the manager that serves real jobs, and equal,
static and clairvoyant sizes to measure them by. Only the part from `tested_from` on is scored; all walk forward.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lbbsp.core.bounds import Bounds
from lbbsp.errors import ConfigError
from lbbsp.predictors import PREDICTORS, make
from lbbsp.recording import Recording, read
from lbbsp.replay import PLAIN, Clairvoyant, Equal, Forecasts, Managed, Played, Policy, Static, forecast, play
from lbbsp.replay_claims import Claimed
from lbbsp.world import World

if TYPE_CHECKING:
    import pandas

EMA_GRID = (0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
ARIMA_GRID = ("0+1+1", "1+1+1", "2+1+1", "1+0+0", "2+0+0", "1+0+1")
TUNED = {
    "ema": [f"ema:alpha={alpha}" for alpha in EMA_GRID],
    "arima": [f"arima:background=false,order={order}" for order in ARIMA_GRID],
}
"""What --tune chooses from, by error on the part before the tested one."""

Tell = Callable[[str, float], None]


@dataclass(frozen=True)
class Settings:
    """How recordings are replayed."""

    predictors: tuple[str, ...] = tuple(PREDICTORS)
    lookahead: int = 0
    tested_from: float = 0.5
    train_steps: int = 20
    limit: int | None = None
    tune: bool = False
    noise: tuple[float, ...] = ()
    seed: int = 0
    claims: bool = False
    """A row for the first predictor's plans with claims, at best."""

    def check(self) -> None:
        """Raise ConfigError on what can't be replayed."""
        for predictor in self.predictors:
            make(predictor, 1)
        if not 0 <= self.tested_from < 1:
            raise ConfigError(f"tested part from {self.tested_from}: wanted a share of at least 0 and below 1")
        if self.lookahead < 0 or self.train_steps < 0 or any(share < 0 for share in self.noise):
            raise ConfigError("lookahead, training steps and noise can't be negative")


@dataclass(frozen=True)
class Row:
    """One predictor, or a plain way to size, on one recording. NaN where a figure does not apply."""

    rmse_pct: float
    slowdown: float
    """Mean iteration time over the clairvoyant plan's."""
    speedup_vs_equal: float
    us_per_iteration: float
    spec: str
    """The predictor with its options."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """All rows of one recording by name, and what a plot shows."""

    name: str
    world: World
    rows: dict[str, Row]
    forecasts: dict[str, Forecasts]
    noise: dict[float, float] = field(default_factory=dict)
    """Slowdown of clairvoyant sizes whose speeds are off by so many percent."""


def compare(
    recordings: Iterable[Recording | Path | str], settings: Settings | None = None, tell: Tell | None = None
) -> list[Comparison]:
    """Replay each recording under all predictors; tell(what, share) hears of the progress.

    Raises:
        ConfigError: a file is no recording, or the settings can't be met.
    """
    settings = settings or Settings()
    settings.check()
    loaded = [given if isinstance(given, Recording) else read(given) for given in recordings]
    return [_compare_one(recording, settings, tell or _silent) for recording in loaded]


def as_frame(comparisons: Sequence[Comparison]) -> "pandas.DataFrame":
    """One line a recording and row, as a pandas DataFrame (needs pandas)."""
    import pandas

    lines = [
        {"recording": comparison.name, "name": name, **vars(row)}
        for comparison in comparisons
        for name, row in comparison.rows.items()
    ]
    return pandas.DataFrame(lines).set_index(["recording", "name"])


def as_json(comparisons: Sequence[Comparison]) -> str:
    """{file: {predictor: {rmse_pct, slowdown, speedup_vs_equal, us_per_iteration}}}; null where not defined."""
    figures = ("rmse_pct", "slowdown", "speedup_vs_equal", "us_per_iteration")
    told = {
        comparison.name: {
            name: {figure: _or_none(getattr(row, figure)) for figure in figures}
            for name, row in comparison.rows.items()
        }
        for comparison in comparisons
    }
    return json.dumps(told, indent=2, allow_nan=False)


def in_line(spec: str) -> str:
    """The predictor with arima's fits in line instead of in a thread, so that a replay repeats."""
    name, _, options = spec.partition(":")
    if name not in ("arima", "auto") or "background=" in options:
        return spec
    return f"{spec}{',' if options else ':'}background=false"


def _or_none(figure: float) -> float | None:
    return figure if figure == figure else None


def _silent(what: str, share: float) -> None:
    pass


def _compare_one(recording: Recording, settings: Settings, tell: Tell) -> Comparison:
    return _Replays(recording, settings, tell).all()


class _Replays:
    """All replays of one recording."""

    def __init__(self, recording: Recording, settings: Settings, tell: Tell) -> None:
        self.recording, self.settings, self._tell = recording, settings, tell
        self.world = World(recording, settings.limit)
        self.bounds = self.world.bounds()

    def all(self) -> Comparison:
        plain = {name: self._play(name, self._plain(name)) for name in PLAIN}
        best_s = plain["clairvoyant"].mean_s(self.settings.tested_from)
        equal_s = plain["equal"].mean_s(self.settings.tested_from)
        rows, forecasts = {}, {}
        for name in PLAIN:
            rows[name] = self._row(plain[name], best_s, equal_s, name)
        for predictor in self.settings.predictors:
            name = predictor.partition(":")[0] if self.settings.tune else predictor
            spec = self._spec(predictor)
            told = forecasts[name] = self._forecast(spec)
            rows[name] = self._row(self._play(name, self._managed(spec)), best_s, equal_s, spec, told)
        if self.settings.claims:
            spec = in_line(self.settings.predictors[0])
            rows["claims"] = self._row(self._play("claims", self._claimed(spec)), best_s, equal_s, f"claims:{spec}")
        return Comparison(self.recording.name, self.world, rows, forecasts, self._noise(best_s))

    def _row(self, played: Played, best_s: float, equal_s: float, spec: str, told: Forecasts | None = None) -> Row:
        mean_s = played.mean_s(self.settings.tested_from)
        nothing = float("nan")
        return Row(
            rmse_pct=told.rmse_percent(self.world, self.settings.tested_from) if told else nothing,
            slowdown=mean_s / best_s,
            speedup_vs_equal=equal_s / mean_s,
            us_per_iteration=told.us_per_iteration if told else nothing,
            spec=spec,
        )

    def _plain(self, name: str) -> Policy:
        plain: dict[str, Callable[[Bounds], Policy]] = {"equal": Equal, "static": Static, "clairvoyant": Clairvoyant}
        return plain[name](self.bounds)

    def _managed(self, spec: str) -> Policy:
        settings = self.settings
        return Managed(self.bounds, spec, self.recording.sensor_names, settings.lookahead, settings.train_steps)

    def _claimed(self, spec: str) -> Policy:
        settings = self.settings
        return Claimed(self.bounds, spec, self.recording.sensor_names, settings.lookahead, settings.train_steps)

    def _play(self, name: str, policy: Policy) -> Played:
        return play(self.world, self.bounds, policy, lambda share: self._tell(f"{self.recording.name}: {name}", share))

    def _forecast(self, spec: str, until: float = 1.0) -> Forecasts:
        return forecast(
            self.world,
            spec,
            horizon=self.settings.lookahead + 1,
            train_steps=self.settings.train_steps,
            until=until,
            tell=lambda share: self._tell(f"{self.recording.name}: {spec} forecasts", share),
        )

    def _spec(self, predictor: str) -> str:
        """The predictor as it will run: fits of arima in line, so that a replay repeats; tuned if asked for."""
        if not self.settings.tune or predictor not in TUNED:
            return in_line(predictor)
        until = self.settings.tested_from
        return min(TUNED[predictor], key=lambda spec: self._forecast(spec, until).rmse_percent(self.world, 0.1, until))

    def _noise(self, best_s: float) -> dict[float, float]:
        found = {}
        for percent in self.settings.noise:
            policy = Clairvoyant(self.bounds, percent / 100.0, self.settings.seed)
            played = self._play(f"{percent:g} % error", policy)
            found[percent] = played.mean_s(self.settings.tested_from) / best_s
        return found
