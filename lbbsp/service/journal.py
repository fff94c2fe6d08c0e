"""What a manager has learnt, in a file that survives kill -9 and power loss: append-only, checksums, compaction.

Appending costs the caller a queue; a thread of the journal's own writes, syncs and compacts, so that a slow disk
delays no plan. Sync policy: the generation before anything else; what a job is, when it begins and ends, at once;
what was learnt with it, or within SYNC_EVERY_S. kill -9 loses what still waits in the queue (milliseconds), power loss
at most SYNC_EVERY_S more; neither ever yields a state that was not one. A torn tail is cut and said so. A disk that
fails is told once: serving goes on. When the file has grown to 4 times what is current, the current part is written
to FILE.new, synced and renamed. FILE.lock keeps a second manager out. Seconds since the epoch.
"""

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from lbbsp.errors import ConfigError, ServiceError
from lbbsp.service.journal_file import HEADER, framed, payloads, recognise, sync_folder, write_all
from lbbsp.service.journal_records import Ended, Forgotten, Learnt, Opened, Record, Started, encode, read_record

log = logging.getLogger(__name__)

SYNC_EVERY_S = 1.0
COMPACT_ABOVE_BYTES = 2**20
COMPACT_FACTOR = 4
PATIENCE_S = 1.0
"""For an earlier manager to let go of the file."""
RETRY_EVERY_S = 10.0
"""After a disk has failed."""

Key = tuple[str, str]
"""Job and kind of record: a newer record replaces an older one."""


class Journal:
    """An open journal; close() ends it.

    Args:
        path: of the file; made where there is none.
        clock: seconds, monotonic.

    Raises:
        ConfigError: the file is something else, of another format, or in use by another manager.
        ServiceError: it can't be read or written.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.path = path
        self.generation = 1
        """Counts those who took up this journal."""
        self.size_bytes = 0
        self.failures = 0
        """Writes that failed since the last one that did not."""
        self.compactions = 0
        self._clock = clock
        self._current: dict[Key, bytes] = {}
        self._waiting: dict[Key, bytes] = {}
        self._wake = threading.Condition()
        self._closing = self._torn = self._busy = self._hurry = False
        self._compact_above = COMPACT_ABOVE_BYTES
        self._synced_s = self._retry_s = clock()
        self._unsynced = False
        try:
            self._lock = _locked(path)
            try:
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    self._open()
                except BaseException:
                    os.close(self._file)
                    raise
            except BaseException:
                os.close(self._lock)
                raise
        except OSError as error:
            raise ServiceError(f"the journal {path} can't be opened: {error.strerror or error}") from error
        self._thread = threading.Thread(target=self._run, name="lbbsp-journal", daemon=True)
        self._thread.start()

    def records(self) -> list[Record]:
        """What is current: of each job what it is, what was learnt, and whether it ended; call it before append."""
        return [read_record(payload) for payload in self._current.values()]

    def append(self, record: Record) -> int:
        """Hand over a record to be written soon; bytes of it. A newer one of its kind takes its place in the queue."""
        payload, key = encode(record), _key(record)
        with self._wake:
            if isinstance(record, Forgotten | Started):
                for kind in ("started", "learnt", "ended", "forgotten"):
                    self._waiting.pop((key[0], kind), None)
            self._waiting.pop(key, None)
            self._waiting[key] = payload
            self._wake.notify_all()
        return len(payload)

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until all that was handed over is written and synced; False where it is not, in that time."""
        with self._wake:
            self._hurry = True
            self._wake.notify_all()
            return self._wake.wait_for(lambda: not (self._waiting or self._busy or self._hurry), timeout_s)

    def close(self) -> None:
        """Write what waits, and end."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._thread.join(10.0)
        os.close(self._file)
        os.close(self._lock)

    def _open(self) -> None:
        """Read what is there, cut a torn tail, say that we are here."""
        recognise(self.path, os.pread(self._file, 64, 0))
        length = os.fstat(self._file).st_size
        end = self._read() if length else 0
        if end < length:
            log.warning("journal %s: %d bytes of a torn tail are cut at byte %d", self.path, length - end, end)
        self._rewrite()

    def _read(self) -> int:
        """Take in all sound records; where they end."""
        end = len(HEADER)
        with os.fdopen(os.dup(self._file), "rb") as file:
            for payload, place in payloads(file):
                try:
                    record = read_record(payload)
                except msgspec.MsgspecError as error:
                    raise ConfigError(
                        f"{self.path} holds a record that this version can't read ({error}): "
                        "install the version of lbbsp that wrote it, or give another file"
                    ) from error
                if isinstance(record, Opened):
                    self.generation = max(self.generation, record.generation + 1)
                else:
                    self._keep(_key(record), payload)
                end = place
        return end

    def _keep(self, key: Key, payload: bytes) -> None:
        """A written record is now current."""
        job, kind = key
        if kind in ("forgotten", "started"):
            for other in ("started", "learnt", "ended"):
                self._current.pop((job, other), None)
        if kind != "forgotten":
            self._current[key] = payload

    def _run(self) -> None:
        """The thread: write what waits, until closed and nothing does."""
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._waiting or self._closing or self._hurry, SYNC_EVERY_S)
                if self._clock() < self._retry_s and not self._closing:
                    self._wake.wait(0.1)
                    continue
                batch, self._waiting = self._waiting, {}
                closing, hurry = self._closing, self._hurry
                self._busy = True
            self._write(batch, closing or hurry)
            with self._wake:
                self._busy, self._hurry = False, self._hurry and not hurry
                self._wake.notify_all()
                if closing:
                    return

    def _write(self, batch: dict[Key, bytes], now: bool) -> None:
        try:
            self._append(batch)
            now = now or any(kind != "learnt" for _, kind in batch)
            if self._unsynced and (now or self._clock() - self._synced_s >= SYNC_EVERY_S):
                os.fdatasync(self._file)
                self._unsynced, self._synced_s = False, self._clock()
            if self.size_bytes > self._compact_above:
                self._rewrite()
        except OSError as error:
            self._failed(batch, error)

    def _append(self, batch: dict[Key, bytes]) -> None:
        if self._torn:
            os.ftruncate(self._file, self.size_bytes)
            self._torn = False
        if not batch:
            return
        data = b"".join(map(framed, batch.values()))
        os.lseek(self._file, self.size_bytes, os.SEEK_SET)
        self._torn = True
        write_all(self._file, data)
        self._torn = False
        self.size_bytes += len(data)
        self._unsynced = True
        for key, payload in batch.items():
            self._keep(key, payload)

    def _rewrite(self) -> None:
        """Put what is current, and our generation, in place of the file."""
        new = self.path.with_name(self.path.name + ".new")
        parts = [framed(encode(Opened(generation=self.generation))), *map(framed, self._current.values())]
        data = HEADER + b"".join(parts)
        file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            write_all(file, data)
            os.fsync(file)
            os.replace(new, self.path)
        except BaseException:
            os.close(file)
            raise
        old, self._file, self.size_bytes = self._file, file, len(data)
        os.close(old)
        sync_folder(self.path.parent)
        self.compactions += 1
        self._unsynced, self._synced_s = False, self._clock()
        self._compact_above = max(COMPACT_ABOVE_BYTES, COMPACT_FACTOR * len(data))
        if self.failures:
            self.failures = 0
            log.info("journal %s: written again", self.path)

    def _failed(self, batch: dict[Key, bytes], error: OSError) -> None:
        """Say so once; what was not written waits again, unless something newer does. Next time all is written anew."""
        self.failures += 1
        self._compact_above = 0
        self._retry_s = self._clock() + RETRY_EVERY_S
        if self.failures == 1:
            log.error(
                "journal %s can't be written: %s; serving goes on, and it is tried again every %.0f s",
                self.path, error.strerror or error, RETRY_EVERY_S,
            )  # fmt: skip
        with self._wake:
            if self._torn:
                self._waiting = {**batch, **self._waiting}


def _key(record: Record) -> Key:
    match record:
        case Opened():
            return "", "opened"
        case Started(job=job):
            return job, "started"
        case Learnt(job=job):
            return job, "learnt"
        case Ended(job=job):
            return job, "ended"
        case Forgotten(job=job):
            return job, "forgotten"


def _locked(path: Path) -> int:
    """A lock that ends with this process; a manager that is ending gets a moment to let go of it.

    Raises:
        ConfigError: another manager has it.
    """
    lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until_s = time.perf_counter() + PATIENCE_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if time.perf_counter() < until_s:
                time.sleep(0.05)
                continue
            os.close(lock)
            raise ConfigError(f"{path} is in use by another manager: stop that one, or give another file") from error
        return lock
