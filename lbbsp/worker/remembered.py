"""The bound that an out-of-memory left behind, kept in a small file for the restart.

One file for each model on each device, under LBBSP_STATE_DIR, else XDG_CACHE_HOME/lbbsp, else ~/.cache/lbbsp.
A bound older than a week counts no more. Knows nothing of frameworks. Samples.
"""

import hashlib
import os
import time
from pathlib import Path

import msgspec

KEPT_S = 7 * 86_400.0


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """What the file holds."""

    max_samples: int
    failed_samples: int
    key: str


def state_dir() -> Path:
    """Where the files are."""
    if named := os.environ.get("LBBSP_STATE_DIR"):
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "lbbsp"


def path_of(key: str) -> Path:
    """The file of a model on a device."""
    return state_dir() / f"bound-{hashlib.sha256(key.encode()).hexdigest()[:20]}.json"


def remember(key: str, max_samples: int, failed_samples: int) -> bool:
    """Keep a bound; False where no file can be written."""
    path = path_of(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(msgspec.json.encode(Bound(max_samples=max_samples, failed_samples=failed_samples, key=key)))
        part.replace(path)
    except OSError:
        return False
    return True


def recall(key: str) -> Bound | None:
    """The bound that was kept; None where there is none, or an old or unreadable one."""
    path = path_of(key)
    try:
        if time.time() - path.stat().st_mtime > KEPT_S:
            return None
        return msgspec.json.decode(path.read_bytes(), type=Bound)
    except (OSError, msgspec.MsgspecError):
        return None
