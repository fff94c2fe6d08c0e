"""What a manager shows of itself at one moment, as plain numbers: read in the poll loop, drawn by others.

Bounded: so many jobs, so many ranks of all jobs together. Times in seconds.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from lbbsp.service.job import Job
from lbbsp.service.latency import Latency
from lbbsp.service.live import Live
from lbbsp.service.table import JobTable

MOST_JOBS = 200
MOST_RANKS = 4_096
"""Of all jobs together; a job that goes beyond is shown without its ranks."""


@dataclass(frozen=True)
class RankFigures:
    """Columns, one entry a rank; NaN before any."""

    batch_samples: list[int]
    own_s: list[float]
    wait_s: list[float]
    forecast_error: list[float]
    slow: list[bool]


@dataclass(frozen=True)
class JobFigures:
    """A running job."""

    name: str
    ranks: int
    iteration: int
    iteration_s: float
    wait_share: float
    lag: int
    forecast_error: float
    predictor: str
    mode: str
    plan_changes: int
    saved_share: float
    silent: int
    causes: dict[str, int]
    """Slow ranks by cause."""
    each: RankFigures | None


@dataclass(frozen=True)
class Figures:
    """All that is shown."""

    jobs: list[JobFigures]
    running: int
    gathering: int
    rejected: dict[str, int]
    turned_away: int
    decisions: list[int]
    """As Latency.counts."""
    decisions_s: float


def figures(table: JobTable, latency: Latency, turned_away: int) -> Figures:
    """Read a table, in the thread that it lives in."""
    running = [job for job in table.jobs.values() if job.live is not None]
    shown, ranks_left = [], MOST_RANKS
    for job in running[:MOST_JOBS]:
        made = _job(job, ranks_left)
        shown.append(made)
        ranks_left -= made.ranks if made.each else 0
    return Figures(
        jobs=shown,
        running=len(running),
        gathering=len(table.jobs) - len(running),
        rejected=table.rejections.total(),
        turned_away=turned_away,
        decisions=list(latency.counts),
        decisions_s=latency.sum_s,
    )


def _job(job: Job, most_ranks: int) -> JobFigures:
    live = job.live
    if live is None:
        raise ValueError("only running jobs have figures")
    stats = live.stats()
    flagged = live.stragglers.flagged
    return JobFigures(
        name=job.name,
        ranks=live.hello.world_size,
        iteration=stats.iteration,
        iteration_s=stats.iteration_time_s,
        wait_share=stats.wait_share,
        lag=stats.lag,
        forecast_error=stats.forecast_error_percent / 100,
        predictor=stats.predictor,
        mode=stats.mode,
        plan_changes=stats.plan_changes,
        saved_share=stats.saved_share,
        silent=int(live.silence.silent.sum()),
        causes=dict(Counter(one.diagnosis.cause.value for one in flagged.values())),
        each=_ranks(live, stats.sizes.tolist()) if live.hello.world_size <= most_ranks else None,
    )


def _ranks(live: Live, sizes: list[int]) -> RankFigures:
    newest = live.stragglers.newest
    unknown = [float("nan")] * len(sizes)
    slow = np.zeros(len(sizes), dtype=np.bool_)
    slow[list(live.stragglers.flagged)] = True
    return RankFigures(
        batch_samples=sizes,
        own_s=unknown if newest is None else newest.time_s.tolist(),
        wait_s=unknown if newest is None else newest.wait_s.tolist(),
        forecast_error=live.stragglers.forecast_error.tolist(),
        slow=slow.tolist(),
    )
