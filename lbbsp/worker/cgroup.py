"""What the control groups of this process allow it: memory in bytes, time in cores. Versions 1 and 2.

Knows nothing of sensors or training. Where there is no limit, or no control group, the answer is none.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

UNLIMITED_BYTES = 2**60
"""Version 1 says "no limit" with a huge number."""


@dataclass(frozen=True)
class MemoryGroup:
    """A control group with a memory limit."""

    limit_bytes: int
    usage: Path
    stat: Path

    def available_bytes(self) -> int:
        """What may still be taken; file cache that is not in use can be had back.

        Raises:
            OSError, ValueError: the group is gone or speaks another language.
        """
        inactive = 0
        for line in self.stat.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                inactive = max(inactive, int(value))
        return self.limit_bytes - int(self.usage.read_text()) + inactive


def memory_groups(root: Path = Path("/")) -> list[MemoryGroup]:
    """The groups above this process that limit its memory."""
    found = []
    for folder in _folders(root, "memory"):
        for limit, usage in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            bytes_ = _number(folder / limit)
            if bytes_ is not None and bytes_ < UNLIMITED_BYTES:
                found.append(MemoryGroup(int(bytes_), folder / usage, folder / "memory.stat"))
    return found


def cpu_quota_cores(root: Path = Path("/")) -> float | None:
    """The tightest quota on processor time, in cores; None where there is none."""
    quotas = []
    for folder in _folders(root, "cpu"):
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota is None or period is None:
            quota, period = _pair(folder / "cpu.max")
        if quota is not None and period and quota > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """From this process's own group upwards; in a container its path may not exist, then the top alone."""
    base = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if names and controller not in names.split(","):
            continue
        top = base / controller if names else base
        folder = top / path.lstrip("/")
        while folder != top and top in folder.parents:
            if folder.is_dir():
                yield folder
            folder = folder.parent
        if top.is_dir():
            yield top


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(path: Path) -> float | None:
    return _pair(path)[0]


def _pair(path: Path) -> tuple[float | None, float | None]:
    """The first two numbers of a file; "max" and what is missing are None."""
    words = " ".join(_lines(path)).split()[:2]
    values = [float(word) if word.lstrip("-").isdigit() else None for word in words] + [None, None]
    return values[0], values[1]
