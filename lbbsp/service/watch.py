"""What the manager does about once a second beside messages: summaries, silence, stragglers, jobs that vanished."""

from lbbsp.service.alarms import Alarms
from lbbsp.service.summary import Summary
from lbbsp.service.table import JobTable

EVERY_S = 1.0


class Watch:
    """Looks at all jobs of a table.

    Args:
        table: the jobs.
        on_straggler: command to run when a rank is flagged and when a flag ends; empty: none.
    """

    def __init__(self, table: JobTable, on_straggler: str = "") -> None:
        self._table = table
        self._summaries: dict[str, Summary] = {}
        self._alarms = Alarms(on_straggler)
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
            self._alarms.look(job, now_s)
