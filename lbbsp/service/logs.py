"""The manager's log on standard error: lines for people, or one JSON object a line for machines.

Time stamps are UTC in JSON, local in text.
"""

import logging
import sys
from datetime import UTC, datetime

import msgspec

from lbbsp.service.config import LogFormat, LogLevel

LINES_PER_S, BURST_LINES = 100.0, 1_000.0


class Throttle(logging.Filter):
    """Passes so many lines a second; the next one says how many did not pass. No peer can fill a disk with our log."""

    def __init__(self) -> None:
        super().__init__()
        self._room, self._at_s, self._dropped = BURST_LINES, 0.0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this line passes."""
        self._room = min(BURST_LINES, self._room + LINES_PER_S * max(0.0, record.created - self._at_s))
        self._at_s = record.created
        if self._room < 1:
            self._dropped += 1
            return False
        self._room -= 1
        if self._dropped:
            record.msg, record.args = f"{record.getMessage()} ({self._dropped} lines before this were too many)", ()
            self._dropped = 0
        return True


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, message, and the trace of an exception."""

    def __init__(self, who: str) -> None:
        super().__init__()
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._who,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def configure(level: LogLevel, form: LogFormat, who: str) -> None:
    """Configure the root logger; for a process that is ours."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter(f"%(asctime)s {who} %(levelname)s %(message)s")
    handler.setFormatter(JsonLines(who) if form is LogFormat.JSON else text)
    handler.addFilter(Throttle())
    logging.basicConfig(level=level.upper(), handlers=[handler])
