"""Reports of a rank that were held back, as few as say the same: one of each run of iterations that are alike.

Pure; seconds.
"""

import msgspec

from lbbsp.protocol import Report


def merged(reports: list[Report]) -> list[Report]:
    """In order; each stands for the `iterations` up to its own, with the means of their times and costs.

    Iterations are alike where their sizes, draws and bounds are, and both or neither of them say something of speed.
    Sensors are the newest that were read; parts of own time are the means of those that were looked at.
    """
    runs: list[list[Report]] = []
    for report in reports:
        if runs and _follows(runs[-1][-1], report):
            runs[-1].append(report)
        else:
            runs.append([report])
    return [run[0] if len(run) == 1 else _mean(run) for run in runs]


def _follows(before: Report, report: Report) -> bool:
    return report.iteration == before.iteration + 1 and _kind(before) == _kind(report)


def _kind(report: Report) -> tuple[object, ...]:
    own = report.samples, report.draws, report.settled, report.max_samples, report.cost > 0
    return *own, report.planned, report.claimed, report.fixed_s


def _mean(run: list[Report]) -> Report:
    count = len(run)
    phases = [report.phases_s for report in run if report.phases_s]
    return msgspec.structs.replace(
        run[-1],
        iterations=count,
        own_time_s=sum(report.own_time_s for report in run) / count,
        wait_s=sum(report.wait_s for report in run) / count,
        input_s=sum(report.input_s for report in run) / count,
        cost=min(sum(report.cost for report in run) / count, max(report.cost for report in run)),
        sensors=next((report.sensors for report in reversed(run) if report.sensors), ()),
        phases_s=tuple(sum(part) / len(phases) for part in zip(*phases, strict=True)) if phases else (),
    )
