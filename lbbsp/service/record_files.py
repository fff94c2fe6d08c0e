"""The files of recordings: a thread that compresses and writes, so that a slow disk stops nobody.

JOB.INCARNATION.0001.csv.gz and so on. What comes together is one gzip member, appended whole: a kill leaves a file
that can be read to its end. A write that fails is counted and logged once, and the next one is tried. Parquet is
made by a process of its own.
"""

import gzip
import logging
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

log = logging.getLogger(__name__)

MIB = 2**20
QUEUE = 256
"""Pieces of all jobs that may wait for the disk; more are lost."""
END_S = 5.0
COMPRESSION = 5


@dataclass(eq=False)
class Tape:
    """One running job's files, of which the newest is written to."""

    job: str
    incarnation: str
    header: str
    part: int = 0
    path: Path | None = None
    size: int = 0

    def name(self) -> str:
        """Of the file at hand: one that any file system takes."""
        return f"{quote(self.job, safe='')[:120]}.{quote(self.incarnation, safe='')[:24]}.{self.part:04d}.csv.gz"


class Files:
    """Writes tapes in a thread of its own.

    Args:
        directory: made if it is not there.
        part_mib: a file of this size is closed.
        most_mib: of all files written here; then the oldest is deleted.
        parquet: closed files become Parquet.
    """

    def __init__(self, directory: Path, part_mib: float, most_mib: float, parquet: bool) -> None:
        self.lost = 0
        """Rows that were not written."""
        self.written = 0
        self._directory = directory
        self._part_bytes, self._most_bytes = part_mib * MIB, most_mib * MIB
        self._parquet = parquet
        self._done: deque[Path] = deque()
        self._failing = False
        self._full = False
        self._makers: list[subprocess.Popen[bytes]] = []
        self._queue: queue.Queue[tuple[Tape, list[str]] | tuple[Tape, None] | None] = queue.Queue(QUEUE)
        self._thread = threading.Thread(target=self._run, name="lbbsp-recording", daemon=True)
        self._thread.start()

    def write(self, tape: Tape, lines: list[str]) -> None:
        """Append rows; never waits."""
        if lines and not self._put((tape, lines)):
            self.lost += len(lines)

    def close(self, tape: Tape) -> None:
        """No more rows will come; never waits."""
        self._put((tape, None))

    def end(self) -> None:
        """Let the thread finish, for END_S at most."""
        self._put(None)
        self._thread.join(END_S)
        log.info("recording: %d rows written, %d lost", self.written, self.lost)

    def _put(self, task: tuple[Tape, list[str]] | tuple[Tape, None] | None) -> bool:
        try:
            self._queue.put_nowait(task)
        except queue.Full:
            if not self._full:
                log.warning("recording: the disk is too slow for what %s gets; rows are lost", self._directory)
            self._full = True
            return False
        return True

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            tape, lines = task
            try:
                if lines is None:
                    self._finish(tape)
                else:
                    self._append(tape, lines)
            except OSError as error:
                self._failed(tape, len(lines or ()), error)

    def _failed(self, tape: Tape, rows: int, error: OSError) -> None:
        self.lost += rows
        if not self._failing:
            log.error("recording of job %r: rows are lost (%s); writing is tried again with the next", tape.job, error)
        self._failing = True

    def _append(self, tape: Tape, lines: list[str]) -> None:
        path = tape.path if tape.path is not None and tape.path.exists() else self._begin(tape)
        text = ("" if tape.size else tape.header) + "\n".join(lines) + "\n"
        member = gzip.compress(text.encode(), COMPRESSION)
        with path.open("r+b", buffering=0) as file:
            file.seek(tape.size)
            _write_whole(file.fileno(), member)
            file.truncate(tape.size + len(member))
        tape.size += len(member)
        self.written += len(lines)
        if self._failing:
            log.warning("recording goes on; %d rows were lost so far", self.lost)
            self._failing = False
        if tape.size >= self._part_bytes:
            self._finish(tape)

    def _begin(self, tape: Tape) -> Path:
        self._directory.mkdir(parents=True, exist_ok=True)
        while True:
            tape.part += 1
            path = self._directory / tape.name()
            try:
                path.open("xb").close()
            except FileExistsError:
                continue
            tape.path, tape.size = path, 0
            self._done.append(path)
            self._drop_oldest()
            return path

    def _finish(self, tape: Tape) -> None:
        path, tape.path = tape.path, None
        if path is not None and tape.size and self._parquet:
            command = [sys.executable, "-P", "-m", "lbbsp.service.record_parquet", str(path)]
            self._makers = [maker for maker in self._makers if maker.poll() is None]
            self._makers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True))

    def _drop_oldest(self) -> None:
        """Make room for one more file."""
        sizes = {path: _size(path) for path in self._done}
        while len(self._done) > 1 and sum(sizes.values()) + self._part_bytes > self._most_bytes:
            oldest = self._done.popleft()
            for path in (oldest, parquet_of(oldest)):
                path.unlink(missing_ok=True)
            del sizes[oldest]


def parquet_of(path: Path) -> Path:
    """Where the Parquet form of a closed file goes."""
    return path.with_name(path.name.removesuffix(".csv.gz") + ".parquet")


def _size(path: Path) -> int:
    return sum(form.stat().st_size for form in (path, parquet_of(path)) if form.exists())


def _write_whole(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
