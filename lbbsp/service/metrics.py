"""Figures of a manager as Prometheus metrics, made when they are scraped: between scrapes they cost nothing.

Labels are bounded: job, rank, cause, predictor, mode, kind; figures.py bounds how many. Seconds, samples, shares.
"""

import math
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from lbbsp import __version__
from lbbsp.protocol import PROTOCOL
from lbbsp.service.figures import Figures, JobFigures, RankFigures
from lbbsp.service.latency import BOUNDS_S

JOB_GAUGES: dict[str, tuple[str, Callable[[JobFigures], float]]] = {
    "lbbsp_job_ranks": ("Ranks of the job.", lambda job: job.ranks),
    "lbbsp_job_iteration": ("Newest iteration that all ranks have reported.", lambda job: job.iteration),
    "lbbsp_iteration_seconds": ("Recent mean time of an iteration.", lambda job: job.iteration_s),
    "lbbsp_wait_share": ("Share of it that an average rank waits for others.", lambda job: job.wait_share),
    "lbbsp_lag_iterations": ("Iterations from a report to the sizes that follow from it.", lambda job: job.lag),
    "lbbsp_forecast_error_share": ("Recent mean error of forecast speeds.", lambda job: job.forecast_error),
    "lbbsp_saved_share": ("Time saved against equal sizes, lately, as a share.", lambda job: job.saved_share),
    "lbbsp_silent_ranks": ("Ranks behind that do not report.", lambda job: job.silent),
}
RANK_GAUGES: dict[str, tuple[str, Callable[[RankFigures], Iterable[float]]]] = {
    "lbbsp_rank_batch_samples": ("Samples of the rank in the newest plan.", lambda each: each.batch_samples),
    "lbbsp_rank_own_seconds": ("Own time of a draw, newest iteration.", lambda each: each.own_s),
    "lbbsp_rank_wait_seconds": ("Wait for the others, newest iteration.", lambda each: each.wait_s),
    "lbbsp_rank_forecast_error_share": ("Recent mean error of the rank's forecasts.", lambda each: each.forecast_error),
    "lbbsp_rank_slow": ("1 where the rank is flagged as slow.", lambda each: map(float, each.slow)),
}


class Manager(Collector):
    """Asks for figures at each scrape.

    Args:
        ask: for figures; None where the manager does not answer.
    """

    def __init__(self, ask: Callable[[], Figures | None]) -> None:
        self._ask = ask

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering asks nobody."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All metrics; only `lbbsp_up` where the manager does not answer."""
        figures = self._ask()
        yield GaugeMetricFamily("lbbsp_up", "1 where the manager answers.", value=float(figures is not None))
        info = GaugeMetricFamily("lbbsp_info", "Version and protocol.", labels=["version", "protocol"])
        info.add_metric([__version__, str(PROTOCOL)], 1.0)
        yield info
        if figures is not None:
            yield from _manager(figures)
            yield from _jobs(figures.jobs)
            yield from _ranks(figures.jobs)


def _manager(figures: Figures) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("lbbsp_jobs", "Jobs; gathering: not all ranks are there.", labels=["state"])
    jobs.add_metric(["running"], figures.running)
    jobs.add_metric(["gathering"], figures.gathering)
    yield jobs
    rejected = CounterMetricFamily("lbbsp_rejected_messages", "Messages that change nothing, by kind.", labels=["kind"])
    for kind, count in sorted(figures.rejected.items()):
        rejected.add_metric([kind], count)
    yield rejected
    yield CounterMetricFamily("lbbsp_turned_away", "Connections with an unknown key.", value=figures.turned_away)
    counts, buckets = 0, []
    for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], figures.decisions, strict=True):
        counts += count
        buckets.append((bound, float(counts)))
    text = "From the report that closes an iteration to its plan on the way."
    yield HistogramMetricFamily("lbbsp_decision_seconds", text, buckets=buckets, sum_value=figures.decisions_s)


def _jobs(jobs: list[JobFigures]) -> Iterator[Metric]:
    for name, (text, read) in JOB_GAUGES.items():
        gauge = GaugeMetricFamily(name, text, labels=["job"])
        for job in jobs:
            if not math.isnan(value := read(job)):
                gauge.add_metric([job.name], value)
        yield gauge
    changes = CounterMetricFamily("lbbsp_plan_changes", "Plans with other sizes than the one before.", labels=["job"])
    predictor = GaugeMetricFamily("lbbsp_predictor", "1 for the one in charge.", labels=["job", "predictor"])
    mode = GaugeMetricFamily("lbbsp_mode", "1 for the mode: balanced, equal, observe.", labels=["job", "mode"])
    slow = GaugeMetricFamily("lbbsp_slow_ranks", "Ranks flagged as slow, by cause.", labels=["job", "cause"])
    for job in jobs:
        changes.add_metric([job.name], job.plan_changes)
        predictor.add_metric([job.name, job.predictor], 1.0)
        mode.add_metric([job.name, job.mode], 1.0)
        for cause, count in sorted(job.causes.items()):
            slow.add_metric([job.name, cause], count)
    yield from (changes, predictor, mode, slow)


def _ranks(jobs: list[JobFigures]) -> Iterator[Metric]:
    for name, (text, read) in RANK_GAUGES.items():
        gauge = GaugeMetricFamily(name, text, labels=["job", "rank"])
        for job in jobs:
            for rank, value in enumerate(read(job.each) if job.each else ()):
                if not math.isnan(value):
                    gauge.add_metric([job.name, str(rank)], value)
        yield gauge
