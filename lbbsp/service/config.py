"""What `lbbsp manager` can be told, and where from: flag, else environment, else file, else default.

A field here is a flag (`--log-level`), a variable (LBBSP_MANAGER_LOG_LEVEL) and a key of the TOML file (`log_level`).
To add one: a field, and a parameter of `command.command`. What is unknown is refused by name.
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from lbbsp.errors import ConfigError
from lbbsp.protocol import MAX_RANKS

PREFIX = "LBBSP_MANAGER_"
FILE = PREFIX + "CONFIG"
"""The file, where no flag names one."""


class LogLevel(StrEnum):
    """Least severity that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How lines of the log look."""

    TEXT = "text"
    JSON = "json"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a manager."""

    bind: str = "tcp://127.0.0.1:5551"
    keys: str = ""
    """Folder that `lbbsp keys` made; empty: no keys."""
    insecure: bool = False
    predictor: str = "ema"
    rule: str = "auto"
    detectors: str = "history"
    """Of slow ranks: names with commas between, or none."""
    on_straggler: str = ""
    metrics: str = ""
    """HOST:PORT; empty: no metrics."""
    log_level: LogLevel = LogLevel.INFO
    log_format: LogFormat = LogFormat.TEXT
    max_jobs: Annotated[int, Meta(ge=1, le=100_000)] = 1_000
    max_ranks: Annotated[int, Meta(ge=1, le=MAX_RANKS)] = 16_384
    """Of one job."""
    max_rate: Annotated[int, Meta(ge=10, le=10_000_000)] = 2_000
    """Messages a second that one connection may send for long."""
    max_memory_mib: Annotated[int, Meta(ge=128)] = 1_024
    """Of the process; above it all connections are closed, and ranks come back by themselves."""
    lane: bool = True
    """Ranks on the manager's machine may send past ZeroMQ; false: all use it."""
    journal: str = ""
    """File that keeps what was learnt across restarts; empty: none."""
    forget_after_s: Annotated[float, Meta(gt=0, le=1e9)] = 86_400.0
    """A job that nobody speaks for is forgotten after so long."""
    record: str = ""
    """Folder for recordings of all jobs; empty: none."""
    record_part_mib: float = 64.0
    """A recording's file of this size is closed."""
    record_most_mib: float = 2048.0
    """Of all files together; beyond it the oldest go."""
    record_parquet: bool = False


FIELDS = {field.name: field.type for field in msgspec.structs.fields(Config)}


def gather(flags: Mapping[str, Any], environment: Mapping[str, str], file: str | None) -> Config:
    """One configuration from all sources.

    Args:
        flags: of the command line, by field; None where not given.
        environment: as os.environ.
        file: path of a TOML file; None: as the environment says, if it does.

    Raises:
        ConfigError: an unknown name or an impossible value; says which, from where, and what would work.
    """
    path = file or environment.get(FILE)
    values: dict[str, Any] = {} if not path else _from_file(path)
    values |= _from_environment(environment)
    for name, value in flags.items():
        if value is not None:
            values[name] = _value(name, value, "--" + name.replace("_", "-"), strict=True)
    return Config(**values)


def _from_file(path: str) -> dict[str, Any]:
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML file: {error}") from error
    _refuse_unknown(table, FIELDS, path)
    return {name: _value(name, value, f"{path}: {name}", strict=True) for name, value in table.items()}


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    ours = {name: text for name, text in environment.items() if name.startswith(PREFIX) and name != FILE}
    _refuse_unknown(ours, [PREFIX + name.upper() for name in FIELDS] + [FILE], "environment")
    named = ((name.removeprefix(PREFIX).lower(), name, text) for name, text in ours.items())
    return {field: _value(field, text, name, strict=False) for field, name, text in named}


def _refuse_unknown(given: Iterable[str], known: Iterable[str], source: str) -> None:
    known = list(known)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"{source}: {name!r} is unknown; {hint}")


def _value(field: str, value: Any, where: str, strict: bool) -> Any:
    try:
        return msgspec.convert(value, FIELDS[field], strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where} can't be {value!r}: {str(error)[0].lower()}{str(error)[1:]}") from error
