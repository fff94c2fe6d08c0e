"""Tells of slow ranks: a line in the log when one is flagged, explained, cleared, and a command of the user's.

The command gets what happened in its environment (LBBSP_JOB, LBBSP_RANK, LBBSP_CHANGE, LBBSP_CAUSE, LBBSP_EVIDENCE,
LBBSP_SINCE, LBBSP_SLOWDOWN); nobody waits for it. Times in seconds by the manager's clock.
"""

import logging
import os
import shlex
import subprocess
from collections.abc import Iterable

from lbbsp.core.causes import Cause
from lbbsp.core.stragglers import Change, Event
from lbbsp.service.job import Job

log = logging.getLogger(__name__)

MOST_LINES = 16
"""Lines of one job in one look; what goes beyond is counted in one more."""
MOST_RUNNING = 4
"""Commands at once; those that come on top are dropped and counted."""


class Alarms:
    """Passes on the events of jobs.

    Args:
        command: run on raise and clear; empty: none.
    """

    def __init__(self, command: str = "") -> None:
        self.dropped = 0
        self._command = shlex.split(command)
        self._running: list[subprocess.Popen[bytes]] = []

    def look(self, job: Job, now_s: float) -> None:
        """Tell what is new of a job."""
        self._running = [process for process in self._running if process.poll() is None]
        if job.live is None:
            return
        job.live.look(now_s)
        events = list(job.live.events)
        job.live.events.clear()
        _write(job.name, [event for event in events if event.diagnosis.cause is not Cause.SILENT])
        for event in events if self._command else ():
            if event.change is not Change.EXPLAINED:
                self._run(job.name, event)

    def _run(self, name: str, event: Event) -> None:
        if len(self._running) >= MOST_RUNNING:
            self.dropped += 1
            return
        try:
            self._running.append(
                subprocess.Popen(
                    self._command, env=os.environ | _environment(name, event), stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )  # fmt: skip
        except OSError as error:
            log.error("cannot run %s: %s; it is not tried again", self._command[0], error)
            self._command = []


def _write(name: str, events: list[Event]) -> None:
    for event in events[:MOST_LINES]:
        level = logging.INFO if event.change is Change.CLEARED else logging.WARNING
        log.log(level, "job %r: %s", name, _line(event))
    if len(events) > MOST_LINES:
        log.warning("job %r: %d more changes of slow ranks", name, len(events) - MOST_LINES)


def _line(event: Event) -> str:
    if event.change is Change.CLEARED:
        return f"rank {event.rank} is no longer slow, at iteration {event.iteration}"
    why = f"{event.diagnosis.cause} ({event.diagnosis.evidence})"
    if event.change is Change.EXPLAINED:
        return f"rank {event.rank} is slow: {why}"
    how = f"{event.slowdown:.2f} times slower than usual since iteration {event.since}"
    return f"rank {event.rank} is {how} ({_listed(event.detectors)}): {why}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _environment(name: str, event: Event) -> dict[str, str]:
    return {
        "LBBSP_JOB": name,
        "LBBSP_RANK": str(event.rank),
        "LBBSP_CHANGE": event.change.value,
        "LBBSP_CAUSE": event.diagnosis.cause.value,
        "LBBSP_EVIDENCE": event.diagnosis.evidence,
        "LBBSP_SINCE": str(event.since),
        "LBBSP_SLOWDOWN": f"{event.slowdown:.2f}",
    }
