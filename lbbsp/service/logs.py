"""The manager's log on standard error: lines for people, or one JSON object a line for machines.

Time stamps are UTC in JSON, local in text.
"""

import logging
import sys
from datetime import UTC, datetime

import msgspec

from lbbsp.service.config import LogFormat, LogLevel


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
    logging.basicConfig(level=level.upper(), handlers=[handler])
