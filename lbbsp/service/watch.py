"""What the manager does about once a second, apart from messages: summaries, silence, jobs that vanished."""

from lbbsp.service.summary import Summary
from lbbsp.service.table import JobTable

EVERY_S = 1.0


class Watch:
    """Looks at all jobs of a table."""

    def __init__(self, table: JobTable) -> None:
        self._table = table
        self._summaries: dict[str, Summary] = {}
        self._due_s = 0.0

    def look(self, now_s: float) -> None:
        """Do what is due; call as often as convenient."""
        if now_s < self._due_s:
            return
        self._due_s = now_s + EVERY_S
        self._table.forget_vanished(now_s)
        for name in self._summaries.keys() - self._table.jobs.keys():
            del self._summaries[name]
        for name, job in self._table.jobs.items():
            summary = self._summaries.setdefault(name, Summary(now_s))
            summary.look(job, self._table.rejections, now_s)
