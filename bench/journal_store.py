"""How the journal stores: records appended to a file against SQLite in WAL mode, the same bytes and as many syncs.

Eight jobs' states are written in turn, every tenth record is followed by a sync (fdatasync, or a WAL checkpoint).
"""

import argparse
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lbbsp.service.journal_file import framed, write_all

JOBS = 8


def measure(name: str, write: Callable[[int, bytes], None], sync: Callable[[], object], count: int, size: int) -> None:
    """Print what a record costs."""
    states = [os.urandom(size) for _ in range(JOBS)]
    cpu_s, took_ms = time.process_time(), []
    for number in range(count):
        began_s = time.perf_counter()
        write(number, states[number % JOBS])
        if number % 10 == 9:
            sync()
        took_ms.append(1e3 * (time.perf_counter() - began_s))
    cpu_us = 1e6 * (time.process_time() - cpu_s) / count
    middle, high = np.percentile(took_ms, (50, 99))
    print(f"{name:12} {cpu_us:12.0f} {middle:10.3f} {high:10.2f} {max(took_ms):10.2f}")


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=400)
    parser.add_argument("--bytes", type=int, default=20_000, help="of a state")
    parser.add_argument("--folder", help="on the disk to measure; default: the system's for temporary files")
    arguments = parser.parse_args()
    print(f"{'':12} {'CPU, us':>12} {'p50, ms':>10} {'p99, ms':>10} {'worst, ms':>10}   a record")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        file = os.open(Path(folder) / "appended", os.O_CREAT | os.O_RDWR)
        measure(
            "append", lambda _, state: write_all(file, framed(state)), lambda: os.fdatasync(file), arguments.records,
            arguments.bytes,
        )  # fmt: skip
        os.close(file)
        base = sqlite3.connect(Path(folder) / "base", isolation_level=None)
        for line in ("pragma journal_mode=wal", "pragma synchronous=normal", "create table s(job primary key, state)"):
            base.execute(line)

        def insert(number: int, state: bytes) -> None:
            base.execute("insert or replace into s values (?, ?)", (f"job {number % JOBS}", state))

        measure(
            "SQLite WAL", insert, lambda: base.execute("pragma wal_checkpoint(passive)"), arguments.records,
            arguments.bytes,
        )  # fmt: skip
        base.close()


if __name__ == "__main__":
    main()
