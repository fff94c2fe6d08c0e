"""Who is slow, since when and why: detectors over finished iterations, flags with hysteresis, causes with evidence.

Pure, and off the decision path: plans never wait for it and never follow from it. Array work over all ranks; only
ranks that are flagged are looked at one by one. Knows nothing of sockets or clocks. Times in seconds.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from lbbsp.core import causes
from lbbsp.core.causes import Cause, Diagnosis
from lbbsp.core.detectors import DEFAULT, make
from lbbsp.core.events import Change, Event, Straggler
from lbbsp.core.flags import LASTING, Flags
from lbbsp.core.profiles import PHASES, Profiles
from lbbsp.core.sight import Judgement, Sight, low_median
from lbbsp.core.state import State, take_ranks, told
from lbbsp.errors import ConfigError

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

__all__ = ["DEFAULT", "Change", "Event", "Straggler", "Stragglers"]

Ranks = npt.NDArray[np.intp]

SILENT, NETWORK = "silent", "network"
"""Found apart from the registry: by the manager's clock, and by waits."""
FRESH = 5
"""Iterations from the first suspicion to a reading of sensors that says something of it: they are averages."""
EXPLAIN_EVERY = 5
MOST_EXPLAINED = 16
"""Flagged ranks that are explained in one iteration."""
_WINDOWS = frozenset({"_window_s"})
_PROFILES = "profiles"
_LATE = 0.25
"""A reduction is late from this share of an iteration on, beyond what is usual."""


class Stragglers:
    """Watches one job.

    Args:
        ranks: of the job.
        sensors: names, in the order of readings.
        detectors: names in the registry; a rank is flagged while any of them flags it. Without any, only who is
            silent is flagged.

    Raises:
        ConfigError: unknown detector.
    """

    def __init__(self, ranks: int, sensors: tuple[str, ...] = (), detectors: Sequence[str] = DEFAULT) -> None:
        self.ranks = ranks
        self.flagged: dict[int, Straggler] = {}
        self.slowdown: Array = np.full(ranks, np.nan)
        """By the first detector, or the one that flags the rank."""
        self.iteration = -1
        self._detectors = {name: make(name, ranks) for name in detectors}
        self._flags = {name: Flags(ranks) for name in (*detectors, NETWORK)}
        self._profiles = Profiles(ranks, sensors)
        self._silent: BoolArray = np.zeros(ranks, dtype=np.bool_)
        self._quiet_s: Array = np.zeros(ranks)
        self.newest: Sight | None = None
        """The newest iteration that was seen."""
        self.forecast_error: Array = np.full(ranks, np.nan)
        """Recent mean error of forecasts, as a share."""

    @property
    def watches(self) -> bool:
        """Whether iterations are looked at."""
        return bool(self._detectors)

    def adjust(self, detector: str, **options: float) -> None:
        """Change a detector's thresholds from the next iteration on.

        Raises:
            ConfigError: this job has no such detector, or it no such threshold.
        """
        if detector not in self._detectors:
            raise ConfigError(f"no detector {detector!r} here; known: {', '.join(sorted(self._detectors))}")
        self._detectors[detector].adjust(**options)

    def options(self) -> dict[str, dict[str, float]]:
        """Thresholds by detector."""
        return {name: dict(detector.options) for name, detector in self._detectors.items()}

    def flags(self, detector: str) -> BoolArray:
        """Whom one detector flags now, (ranks,)."""
        return self._silent if detector == SILENT else self._flags[detector].raised

    def see(self, sight: Sight) -> list[Event]:
        """Take one closed iteration; what changed."""
        self.iteration, self.newest = sight.iteration, sight
        if not self.watches:
            return []
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            judged = {name: detector.judge(sight) for name, detector in self._detectors.items()}
            for name, judgement in judged.items():
                self._flags[name].see(sight.iteration, judgement)
            self._profiles.see(sight, ~self._suspicious() & (self._flags[NETWORK].count == 0))
            if self._profiles.timed:
                self._flags[NETWORK].see(sight.iteration, self._network(sight))
                self._score(sight)
        self.slowdown = self._worst(list(judged.values()))
        return self._settle()

    def hear(self, silent: BoolArray, quiet_s: Array) -> list[Event]:
        """Take who is silent by the manager's clock, and for how long; what changed."""
        self._silent, self._quiet_s = silent.copy(), quiet_s
        return self._settle()

    def told(self) -> State:
        """What each rank's best and usual is, for a journal; windows of single iterations are left out."""
        found: State = {name: told(detector, _WINDOWS) for name, detector in self._detectors.items()}
        return found | {_PROFILES: {"names": list(self._profiles.names), "usual": self._profiles.usual}}

    def inherit(self, state: object, here: Ranks, there: Ranks) -> None:
        """Go on from what was told of the same devices, at the same reference size: `there` are now ranks `here`."""
        if not isinstance(state, dict):
            return
        for name, detector in self._detectors.items():
            take_ranks(detector, state.get(name), here, there)
        usual = state.get(_PROFILES)
        if isinstance(usual, dict) and usual.get("names") == list(self._profiles.names):
            take_ranks(self._profiles, usual, here, there)

    def given_more(self) -> dict[int, Diagnosis]:
        """Ranks that take longer than others only because they were given more, and the figures."""
        sight = self.newest
        if sight is None:
            return {}
        with np.errstate(invalid="ignore"):
            longer = sight.time_s > 1.25 * low_median(sight.time_s)
            more = np.flatnonzero(longer & (sight.samples > 1.1 * low_median(sight.samples))).tolist()
        share = float(np.nansum(sight.samples)) / self.ranks
        rows = {rank: (sight.samples[rank], share, sight.time_s[rank], sight.reference_s[rank]) for rank in more}
        return {rank: causes.more_by_plan(*map(float, row)) for rank, row in rows.items() if rank not in self.flagged}

    def _score(self, sight: Sight) -> None:
        error = np.abs(sight.forecast_s / sight.reference_s - 1.0)
        mixed = self.forecast_error + 0.1 * (error - self.forecast_error)
        self.forecast_error = np.where(np.isnan(mixed), np.fmax(self.forecast_error, error), mixed)

    def _suspicious(self) -> BoolArray:
        counts = [self._flags[name].count > 0 for name in self._detectors]
        return np.logical_or.reduce(counts) if counts else np.zeros(self.ranks, dtype=np.bool_)

    def _worst(self, judged: list[Judgement]) -> Array:
        if not judged:
            return np.full(self.ranks, np.nan)
        worst: Array = np.fmax.reduce([judgement.slowdown for judgement in judged])
        return worst

    def _network(self, sight: Sight) -> Judgement:
        """Reductions that end late, of ranks whose own time is fine: lateness over its limit."""
        late_s, usual_s = self._profiles.latest()
        limit_s = _LATE * low_median(sight.time_s) + 1.5 * np.fmax(usual_s, 0.0)
        fine = ~self._suspicious()
        return Judgement(np.where(fine, 1.0 + late_s / limit_s, np.nan), np.full(self.ranks, 2.0))

    def _settle(self) -> list[Event]:
        """Bring `flagged` up to date."""
        raised = self._silent | np.logical_or.reduce([flags.raised for flags in self._flags.values()])
        events = [self._clear(rank) for rank in list(self.flagged) if not raised[rank]]
        new = np.flatnonzero(raised).tolist() if raised.any() else []
        events += [self._raise(rank) for rank in new if rank not in self.flagged]
        events += self._explain(list(self.flagged.values()))
        return events

    def _raise(self, rank: int) -> Event:
        since = [flags.since[rank] for flags in self._flags.values() if flags.raised[rank]]
        detectors = self._by(rank)
        first = int(min(since)) if since else self.iteration
        found = Straggler(rank, first, float(self.slowdown[rank]), detectors, self._diagnose(rank, first, detectors))
        found.explained = first
        self.flagged[rank] = found
        return self._event(Change.RAISED, found)

    def _clear(self, rank: int) -> Event:
        return self._event(Change.CLEARED, self.flagged.pop(rank))

    def _explain(self, flagged: Iterable[Straggler]) -> list[Event]:
        """Look at flagged ranks again, each now and then; say so once a cause is found."""
        events: list[Event] = []
        due = [one for one in flagged if self.iteration - one.explained >= EXPLAIN_EVERY or self._silent[one.rank]]
        for one in due[:MOST_EXPLAINED]:
            one.explained = self.iteration
            one.detectors, one.slowdown = self._by(one.rank), float(self.slowdown[one.rank])
            one.lasting = self.iteration - one.since >= LASTING
            before = one.diagnosis
            one.diagnosis = self._diagnose(one.rank, one.since, one.detectors)
            if one.diagnosis.cause is not before.cause and one.diagnosis.certain:
                events.append(self._event(Change.EXPLAINED, one))
        return events

    def _by(self, rank: int) -> tuple[str, ...]:
        silent = (SILENT,) if self._silent[rank] else ()
        return silent + tuple(name for name, flags in self._flags.items() if flags.raised[rank])

    def _diagnose(self, rank: int, since: int, detectors: tuple[str, ...]) -> Diagnosis:
        if SILENT in detectors:
            return Diagnosis(Cause.SILENT, f"no report for {self._quiet_s[rank]:.0f} s while others are ahead of it")
        now, usual = self._profiles.of(rank, usual=False), self._profiles.of(rank, usual=True)
        if detectors == (NETWORK,):
            return causes.network(now["compute_s"] + now["input_s"], now["late_s"], usual["late_s"])
        if self._profiles.phased_at[rank] < since:
            now |= dict.fromkeys(PHASES, math.nan)
        fresh = bool(self._profiles.read_at[rank] >= since + FRESH)
        return causes.diagnose(usual, now, fresh)

    def _event(self, change: Change, one: Straggler) -> Event:
        return Event(change, one.rank, self.iteration, one.since, one.slowdown, one.detectors, one.diagnosis)
