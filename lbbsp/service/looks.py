"""Answers whoever looks at a job: what JobStats and the detectors say, for as many ranks as were asked for.

Reads only, except for thresholds of detectors, which move no size. Who may connect may look: beyond loopback that
takes keys, or a manager that was told to be open. An answer is made at most a few times a second for each job.
"""

import msgspec
import numpy as np

from lbbsp.core.causes import Diagnosis
from lbbsp.core.sight import Array, low_median
from lbbsp.core.stragglers import Straggler
from lbbsp.errors import ConfigError
from lbbsp.protocol import Flag, Look, Seen
from lbbsp.service.job import Job
from lbbsp.service.live import Live

KEPT_S = 0.2
"""An answer serves all who ask within this time."""
MAX_KEPT = 64
MAX_JOBS, MAX_FLAGS = 1_000, 256


class Looks:
    """Makes answers and keeps them for a moment."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int, int], tuple[float, Seen]] = {}

    def answer(self, look: Look, jobs: dict[str, Job], now_s: float) -> Seen:
        """The job as it is now, or a moment ago."""
        problem = self._adjust(look, jobs) if look.thresholds else ""
        key = (look.job, look.first, look.most)
        made_s, seen = self._kept.get(key, (-KEPT_S, None))
        if seen is None or now_s - made_s >= KEPT_S or look.thresholds:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            seen = _seen(look, jobs)
            self._kept[key] = (now_s, seen)
        return msgspec.structs.replace(seen, problem=problem) if problem else seen

    def _adjust(self, look: Look, jobs: dict[str, Job]) -> str:
        """Change thresholds; why it could not be done, or nothing."""
        job = jobs.get(look.job)
        if job is None or job.live is None:
            return f"no job {look.job!r} runs here"
        try:
            for name, value in look.thresholds.items():
                detector, _, option = name.partition(".")
                job.live.stragglers.adjust(detector, **{option: value})
        except ConfigError as error:
            return str(error)
        return ""


def _seen(look: Look, jobs: dict[str, Job]) -> Seen:
    names = tuple(sorted(jobs)[:MAX_JOBS])
    job = jobs.get(look.job)
    if job is None or job.live is None:
        return Seen(jobs=names)
    return _job(look, job.live, names)


def _job(look: Look, live: Live, names: tuple[str, ...]) -> Seen:
    stats, ranks = live.stats(), slice(look.first, look.first + look.most)
    unknown: Array = np.full(live.hello.world_size, np.nan)
    newest = live.stragglers.newest
    own_s, wait_s, reference_s = (
        (unknown, unknown, unknown) if newest is None else (newest.time_s, newest.wait_s, newest.reference_s)
    )
    return Seen(
        jobs=names,
        job=look.job,
        incarnation=live.hello.incarnation,
        world_size=live.hello.world_size,
        global_batch=live.hello.global_batch,
        iteration=live.newest_iteration,
        iteration_time_s=stats.iteration_time_s,
        wait_share=stats.wait_share,
        lag=stats.lag,
        mode=stats.mode,
        predictor=stats.predictor,
        forecast_error_percent=stats.forecast_error_percent,
        plan_changes=stats.plan_changes,
        saved_share=stats.saved_share,
        first=look.first,
        machines=live.machines[ranks],
        sizes=tuple(stats.sizes[ranks].tolist()),
        own_time_s=tuple(own_s[ranks].tolist()),
        wait_s=tuple(wait_s[ranks].tolist()),
        relative_speed=tuple((low_median(reference_s) / reference_s)[ranks].tolist()),
        forecast_error=tuple(live.stragglers.forecast_error[ranks].tolist()),
        flags=_flags(live),
        thresholds={
            f"{detector}.{option}": value
            for detector, options in live.stragglers.options().items()
            for option, value in options.items()
        },
    )


def _flags(live: Live) -> tuple[Flag, ...]:
    """Slow ranks of the whole job, the slowest first; then those that only have more to do."""
    slow = sorted(live.stragglers.flagged.values(), key=lambda one: -np.nan_to_num(one.slowdown, nan=np.inf))
    flags = [_flag(one) for one in slow[:MAX_FLAGS]]
    flags += [_note(rank, why) for rank, why in live.stragglers.given_more().items()]
    return tuple(flags[:MAX_FLAGS])


def _note(rank: int, why: Diagnosis) -> Flag:
    return Flag(
        rank=rank,
        slow=False,
        since=-1,
        slowdown=1.0,
        lasting=False,
        detectors=(),
        cause=why.cause.value,
        evidence=why.evidence,
    )


def _flag(one: Straggler) -> Flag:
    return Flag(
        rank=one.rank,
        slow=True,
        since=one.since,
        slowdown=one.slowdown,
        lasting=one.lasting,
        detectors=one.detectors,
        cause=one.diagnosis.cause.value,
        evidence=one.diagnosis.evidence,
    )
