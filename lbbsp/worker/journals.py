"""Where the manager that a job starts itself keeps what was learnt, for the job's next start on this machine.

One file for each job that has a name, beside the memory bounds (remembered.py); a day old, it goes. A job without a
name never comes back, and keeps none.
"""

import hashlib
import time
from pathlib import Path

from lbbsp.worker.remembered import state_dir

KEPT_S = 86_400.0
PREFIX, DIGITS = "journal-", 20


def journal_of(job: str, incarnation: str) -> Path | None:
    """The job's file, its folder made; None where the job has no name or no folder can be made."""
    if job == incarnation:
        return None
    folder = state_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
    except OSError:
        return None
    return folder / f"{PREFIX}{hashlib.sha256(job.encode()).hexdigest()[:DIGITS]}"


def _sweep(folder: Path) -> None:
    """Remove what is too old; another job may be doing the same. A journal in use is never old."""
    for path in folder.glob(f"{PREFIX}{'?' * DIGITS}"):
        try:
            if time.time() - path.stat().st_mtime > KEPT_S:
                for part in (path, path.with_name(path.name + ".lock"), path.with_name(path.name + ".new")):
                    part.unlink(missing_ok=True)
        except FileNotFoundError:
            continue
