"""Jobs that nobody speaks for now but that may come back: from a journal, or ended a moment ago (an elastic restart).

Bounded in number and age. No files; the manager's clock comes in as an argument, in seconds.
"""

from dataclasses import dataclass, replace

from lbbsp.core.state import State
from lbbsp.protocol import Hello

MOST = 1_000
"""Beyond it the one to be forgotten soonest gives way."""
KEPT_AFTER_END_S = 600.0
"""A job whose ranks have all said bye may be about to restart."""


@dataclass(frozen=True, eq=False)
class PastJob:
    """What is left of a job."""

    hellos: tuple[Hello, ...]
    """Of its last incarnation, in order of rank."""
    replaced: tuple[str, ...]
    """Earlier incarnations, which are heard no more."""
    state: State | None
    """What its sizing core told; None where it had learnt nothing."""
    forget_s: float
    """When it counts no more."""
    version: int = 0
    """Of its last plan, in this run of the manager."""

    @property
    def incarnation(self) -> str:
        """The last one."""
        return self.hellos[0].incarnation


class Past:
    """Past jobs by name."""

    def __init__(self) -> None:
        self.jobs: dict[str, PastJob] = {}

    def keep(self, name: str, job: PastJob) -> None:
        """Remember a job."""
        self.jobs[name] = job
        if len(self.jobs) > MOST:
            del self.jobs[min(self.jobs, key=lambda name: self.jobs[name].forget_s)]

    def ended(self, name: str, job: PastJob, now_s: float) -> None:
        """Remember a job that has ended, for a while."""
        self.keep(name, replace(job, forget_s=min(job.forget_s, now_s + KEPT_AFTER_END_S)))

    def take(self, name: str) -> PastJob | None:
        """What is left of a job that is back; it is no past one any more."""
        return self.jobs.pop(name, None)

    def forget(self, now_s: float) -> list[str]:
        """Drop what is too old; the names."""
        over = [name for name, job in self.jobs.items() if now_s > job.forget_s]
        for name in over:
            del self.jobs[name]
        return over
