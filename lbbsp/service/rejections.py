"""Counts what was rejected, by job and kind, and lets each kind be logged once: no peer can flood the log."""

import logging
from collections import Counter

log = logging.getLogger(__name__)

MAX_KEYS = 4096
"""Jobs times kinds remembered apart; what comes beyond shares one count."""


class Rejections:
    """Rejected messages by job (as the sender claims it; empty where unreadable) and kind."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._kinds: Counter[str] = Counter()

    def add(self, job: str, kind: str, detail: str, level: int = logging.WARNING) -> None:
        """Count one; log it when it is the first of its kind in its job."""
        self._kinds[kind] += 1
        key = (job, kind)
        if key not in self._counts and len(self._counts) >= MAX_KEYS:
            key = ("", "beyond the table")
        self._counts[key] += 1
        if self._counts[key] == 1:
            log.log(level, "job %r: rejected (%s): %s; more of these are counted only", job, kind, detail)

    def of(self, job: str) -> dict[str, int]:
        """Counts of one job by kind."""
        return {kind: count for (name, kind), count in self._counts.items() if name == job}

    def total(self) -> dict[str, int]:
        """Counts by kind of all jobs, ended ones too: they never fall."""
        return dict(self._kinds)

    def forget(self, job: str) -> None:
        """Drop a job that has ended."""
        for key in [key for key in self._counts if key[0] == job]:
            del self._counts[key]
