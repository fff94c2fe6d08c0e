"""Recordings of jobs: files of one row a worker and iteration, read into arrays (iterations, workers).

Takes gzip or plain CSV, and Parquet with the extra lbbsp[parquet]. Columns: worker, iteration, samples, own_time_s
(or time_s), of all `draws` of an iteration together; start_s and wait_s if known; settled, 0 where the time holds
one-off costs and says nothing of speed; input_s, prepare_s, forward_s, backward_s, parts of own_time_s, not read here;
every other column of numbers is a sensor, read when that iteration started, or, where its name begins with over_,
averaged over it. Blank = unknown. Times in seconds.
"""

import csv
import gzip
import logging
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lbbsp.errors import ConfigError

Array = npt.NDArray[np.float64]
log = logging.getLogger(__name__)

VERSION = 1
NEEDED = ("worker", "iteration", "samples")
TIMES = ("own_time_s", "time_s")
PHASES = ("prepare_s", "forward_s", "backward_s")
"""Of own_time_s: from the draw to the forward pass, forward, backward; told now and then."""
NO_SENSORS = frozenset(
    (*NEEDED, *TIMES, "start_s", "wait_s", "input_s", "draws", "settled", "recording_version", *PHASES)
)
OVER = "over_"


@dataclass(frozen=True, eq=False)
class Recording:
    """One job. Arrays are (iterations, workers), NaN where a worker has no row; iterations in order."""

    name: str
    workers: tuple[str, ...]
    samples: Array
    own_time_s: Array
    start_s: Array
    """When each iteration started, on one clock; all NaN where the file does not say."""
    sensor_names: tuple[str, ...]
    at_start: Array
    """(iterations, workers, sensors): readings known when that iteration started."""

    @property
    def timed(self) -> bool:
        """Whether the file says when iterations started."""
        return bool(np.isfinite(self.start_s).any())

    def sent(self) -> Array:
        """Readings sent with each iteration's report: those known when the worker's next one started."""
        sent = np.full_like(self.at_start, np.nan)
        sent[:-1] = self.at_start[1:]
        return sent


def read(path: Path | str) -> Recording:
    """The recording in a file.

    Raises:
        ConfigError: it is no recording, or one of another version; says what is missing or wrong, and where.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"no recording at {path}")
    columns = _from_parquet(path) if path.suffix == ".parquet" else _from_csv(path)
    return _arranged(path.name, columns)


def _from_parquet(path: Path) -> dict[str, list[str]]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError:
        raise ConfigError(f"{path.name}: Parquet needs pyarrow: pip install 'lbbsp[parquet]'") from None
    try:
        table = parquet.read_table(path)
    except ArrowInvalid as error:
        raise ConfigError(f"{path.name} is no Parquet file that can be read: {error}") from None
    columns = table.to_pydict()
    return {name: ["" if cell is None else str(cell) for cell in cells] for name, cells in columns.items()}


def _from_csv(path: Path) -> dict[str, list[str]]:
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
        rows = _whole_rows(path.name, csv.reader(file))
        header = next(rows, [])
        _check_columns(path.name, header)
        cells = list(zip(*rows, strict=True)) or [()] * len(header)
    return {name: list(column) for name, column in zip(header, cells, strict=True)}


def _whole_rows(name: str, rows: Iterator[list[str]]) -> Iterator[list[str]]:
    """Rows of full length; a file that was cut short ends with the last of them."""
    width, number, short = 0, 0, None
    try:
        for number, row in enumerate(rows, 1):
            if short:
                raise ConfigError(f"{name}, line {short}: wanted {width} columns as in line 1")
            width = width or len(row)
            if len(row) == width:
                yield row
            elif row:
                short = number
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        if not number:
            raise ConfigError(f"{name} is no recording that can be read: {error}") from None
        log.warning("%s ends in the middle of line %d (%s): read up to there", name, number + 1, error)
    if short:
        log.warning("%s ends in the middle of line %d: read up to there", name, short)


def _check_columns(name: str, header: list[str]) -> None:
    missing = [column for column in NEEDED if column not in header]
    if not any(column in header for column in TIMES):
        missing.append(" or ".join(TIMES))
    if missing:
        raise ConfigError(f"{name} lacks the column {', '.join(missing)}; it has {', '.join(header) or 'none'}")


def _arranged(name: str, columns: dict[str, list[str]]) -> Recording:
    _check_columns(name, list(columns))
    _check_version(name, columns)
    cells = _Cells(name, columns)
    sensors = [column for column in columns if column not in NO_SENSORS]
    own_time_s = cells.grid(TIMES[0] if TIMES[0] in columns else TIMES[1])
    samples = cells.grid("samples")
    draws = cells.grid("draws") if "draws" in columns else np.ones(samples.shape)
    samples, own_time_s = samples / draws, own_time_s / draws
    sound = (own_time_s > 0) & (samples > 0) & np.isfinite(samples)
    if "settled" in columns:
        sound &= cells.grid("settled") != 0
    at_start = np.full((*own_time_s.shape, len(sensors)), np.nan)
    for index, sensor in enumerate(sensors):
        grid = cells.grid(sensor)
        if sensor.startswith(OVER):
            grid[1:], grid[0] = grid[:-1].copy(), np.nan
        at_start[:, :, index] = grid
    return Recording(
        name=name,
        workers=cells.workers,
        samples=np.where(sound, samples, np.nan),
        own_time_s=np.where(sound, own_time_s, np.nan),
        start_s=cells.grid("start_s") if "start_s" in columns else np.full(own_time_s.shape, np.nan),
        sensor_names=tuple(sensors),
        at_start=at_start,
    )


def _check_version(name: str, columns: dict[str, list[str]]) -> None:
    versions = set(columns.get("recording_version", ())) - {"", str(VERSION)}
    if versions:
        raise ConfigError(f"{name} is a recording of version {', '.join(sorted(versions))}; this reads {VERSION}")


class _Cells:
    """Columns of text, put on a grid of iterations by workers, each in its order."""

    def __init__(self, name: str, columns: dict[str, list[str]]) -> None:
        self._name, self._columns = name, columns
        if not columns["worker"]:
            raise ConfigError(f"{name} has no row")
        self.workers = tuple(dict.fromkeys(columns["worker"]))
        place = {worker: index for index, worker in enumerate(self.workers)}
        self._worker = np.array([place[worker] for worker in columns["worker"]])
        self._iterations, self._iteration = np.unique(self._numbers("iteration"), return_inverse=True)
        if np.isnan(self._iterations).any():
            raise ConfigError(f"{name} has rows without an iteration")
        self._check_twice()

    def _check_twice(self) -> None:
        pairs = self._iteration * len(self.workers) + self._worker
        _, first = np.unique(pairs, return_index=True)
        if len(first) < len(pairs):
            again = np.setdiff1d(np.arange(len(pairs)), first)[0]
            worker, iteration = self._columns["worker"][again], self._columns["iteration"][again]
            raise ConfigError(f"{self._name}, line {again + 2}: worker {worker}, iteration {iteration} a second time")

    def _numbers(self, column: str) -> Array:
        cells = self._columns[column]
        try:
            return np.array([float(cell) if cell else np.nan for cell in cells], dtype=np.float64)
        except ValueError:
            line = next(number for number, cell in enumerate(cells, 2) if not _is_number(cell))
            raise ConfigError(
                f"{self._name}, line {line}, column {column}: wanted a number, got {cells[line - 2]!r}"
            ) from None

    def grid(self, column: str) -> Array:
        """The column as (iterations, workers), NaN where there is no row or no number."""
        grid = np.full((len(self._iterations), len(self.workers)), np.nan)
        grid[self._iteration, self._worker] = self._numbers(column)
        return np.where(np.isfinite(grid), grid, np.nan)


def _is_number(cell: str) -> bool:
    try:
        float(cell or "nan")
    except ValueError:
        return False
    return True
