"""Which hellos a manager has room for: jobs, jobs of one caller, ranks of a job. Pure; seconds.

A caller is a key, or without keys a connection: nobody can fill the table alone.
"""

from collections import Counter
from collections.abc import Mapping

from lbbsp.protocol import Hello
from lbbsp.service.job import Job

MOST_OF_ONE = 64
"""Jobs of one caller at once."""
IDLE_S = 30.0
"""A job that has not started and was not heard of for this long gives way when the table is full ..."""
SILENT_S = 600.0
"""... and so does one that has started, after this time."""
EVICT_EVERY_S = 1.0


class Admission:
    """Room for jobs.

    Args:
        most_jobs: at once.
        most_ranks: of one job.
    """

    def __init__(self, most_jobs: int = 1_000, most_ranks: int = 16_384) -> None:
        self._most_jobs, self._most_ranks = most_jobs, most_ranks
        self._opener: dict[str, str | bytes] = {}
        self._opened: Counter[str | bytes] = Counter()
        self._evicted_s = float("-inf")

    def refuse(self, hello: Hello, caller: str | bytes, jobs: Mapping[str, Job]) -> str | None:
        """Why there is no room for this hello; None where there is."""
        if hello.world_size > self._most_ranks:
            return (
                f"a job of {hello.world_size} ranks came, this manager takes {self._most_ranks}: raise its --max-ranks"
            )
        if hello.job in jobs:
            return None
        if self._opened[caller] >= MOST_OF_ONE:
            return f"this caller has {MOST_OF_ONE} jobs here, the limit for one: end some first"
        if len(jobs) >= self._most_jobs:
            return f"this manager has {self._most_jobs} jobs, its limit: raise its --max-jobs or use another manager"
        return None

    def idle(self, jobs: Mapping[str, Job], now_s: float) -> str | None:
        """A job to give way to a new one, where the table is full and nobody speaks for that one; rarely."""
        if len(jobs) < self._most_jobs or now_s - self._evicted_s < EVICT_EVERY_S:
            return None
        self._evicted_s = now_s
        due = ((job.heard_s + (IDLE_S if job.live is None else SILENT_S), name) for name, job in jobs.items())
        due_s, name = min(due)
        return name if now_s > due_s else None

    def opened(self, job: str, caller: str | bytes) -> None:
        """This caller has opened a job."""
        self._opener[job] = caller
        self._opened[caller] += 1

    def ended(self, job: str) -> None:
        """A job is no more."""
        caller = self._opener.pop(job, None)
        if caller is None:
            return
        self._opened[caller] -= 1
        if not self._opened[caller]:
            del self._opened[caller]
