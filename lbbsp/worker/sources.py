"""The sources behind the sensors: /proc and the control groups. Each knows its files and nothing else.

Files stay open and are read from the start each time. Times in seconds, shares of time between 0 and 1.
"""

import math
import os
import resource
import time
from pathlib import Path

from lbbsp.worker.cgroup import memory_groups

NAN = math.nan
GIB = 2.0**30
STAT_BYTES = 1 << 16
SLOW_STAT_S = 0.005
"""Seconds between two reads of /proc/stat for each core: the kernel writes it anew for every reader."""


class File:
    """A file of the kernel's that is read again and again.

    A missing one raises OSError at each read, not when made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._descriptor = -1

    def read(self, most_bytes: int = 4096) -> bytes:
        """Its content now."""
        if self._descriptor < 0:
            raise FileNotFoundError(self._path)
        return os.pread(self._descriptor, most_bytes, 0)

    def close(self) -> None:
        """Close it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Rate:
    """Growth per second of a counter since it was last looked at; NaN at first."""

    def __init__(self) -> None:
        self._total = self._at_s = NAN

    def __call__(self, total: float, now_s: float) -> float:
        """The rate up to now; a counter that went back starts anew."""
        grown, passed_s = total - self._total, now_s - self._at_s
        self._total, self._at_s = total, now_s
        return grown / passed_s if passed_s > 0 and grown >= 0 else NAN


class Load:
    """Others that want to run now, and the load average: fresh at each read."""

    names = ("running", "load_1min")
    every_s = 0.0

    def __init__(self, root: Path) -> None:
        self._file = File(root / "proc/loadavg")

    def read(self, now_s: float) -> tuple[float, ...]:
        """Threads runnable on the machine apart from this one; load average over a minute."""
        words = self._file.read().split()
        return float(words[3].split(b"/")[0]) - 1.0, float(words[0])

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Cores:
    """How busy the cores are that this process may use, ourselves included, and what the hypervisor took."""

    names = ("cpu_busy_share", "steal_share")

    def __init__(self, root: Path) -> None:
        self._file = File(root / "proc/stat")
        self.every_s = max(0.02, SLOW_STAT_S * (os.cpu_count() or 1))
        self._cores: set[int] = set()
        self._before = (0, 0, 0)

    def read(self, now_s: float) -> tuple[float, ...]:
        """Shares since the read before; NaN at first and when the affinity has changed."""
        cores = os.sched_getaffinity(0)
        now = self._ticks(cores)
        passed, idle, stolen = (a - b for a, b in zip(now, self._before, strict=True))
        known, self._cores, self._before = cores == self._cores, cores, now
        if not known or passed <= 0:
            return NAN, NAN
        return 1.0 - idle / passed, stolen / passed

    def _ticks(self, cores: set[int]) -> tuple[int, int, int]:
        """All, idle and stolen ticks of these cores together."""
        total = idle = stolen = 0
        for line in self._file.read(STAT_BYTES).split(b"\n")[1:]:
            if not line.startswith(b"cpu"):
                break
            name, *words = line.split()
            if int(name[3:]) in cores:
                ticks = [int(word) for word in words[:8]]
                total, idle, stolen = total + sum(ticks), idle + ticks[3] + ticks[4], stolen + ticks[7]
        return total, idle, stolen

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Own:
    """What this process got: processor time, waits for a core, times it was pushed off one."""

    names = ("own_cpu_cores", "run_delay_share", "preemptions_per_s")
    every_s = 0.0

    def __init__(self, root: Path) -> None:
        self._file = File(root / "proc/self/schedstat")
        self._cpu, self._delay, self._preempted = Rate(), Rate(), Rate()

    def read(self, now_s: float) -> tuple[float, ...]:
        """Averages since the read before; the delay is the main thread's."""
        preempted = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        return (
            self._cpu(time.process_time(), now_s),
            self._delay(self._delay_s(), now_s),
            self._preempted(preempted, now_s),
        )

    def _delay_s(self) -> float:
        """NaN where the kernel does not keep it: it then says 0 for the time on a core too."""
        try:
            ran_ns, waited_ns = self._file.read().split()[:2]
        except (OSError, ValueError):
            return NAN
        return float(waited_ns) * 1e-9 if int(ran_ns) else NAN

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Pressure:
    """Share of time in which somebody on the machine stalled for a core, for memory, for a disk (PSI)."""

    names = ("psi_cpu_share", "psi_memory_share", "psi_io_share")
    every_s = 0.0

    def __init__(self, root: Path) -> None:
        self._files = [File(root / "proc/pressure" / name) for name in ("cpu", "memory", "io")]
        self._rates = [Rate() for _ in self._files]

    def read(self, now_s: float) -> tuple[float, ...]:
        """Averages since the read before; NaN for each that the kernel does not keep."""
        return tuple(rate(self._stalled_s(file), now_s) for rate, file in zip(self._rates, self._files, strict=True))

    def _stalled_s(self, file: File) -> float:
        try:
            some = file.read().split(b"\n", 1)[0]
        except OSError:
            return NAN
        return float(some.rpartition(b"total=")[2]) * 1e-6

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


class Memory:
    """Memory of the machine, or of the control group where that is tighter."""

    names = ("memory_used_share", "memory_available_gib")
    every_s = 1.0

    def __init__(self, root: Path) -> None:
        self._file = File(root / "proc/meminfo")
        self._groups = memory_groups(root)

    def read(self, now_s: float) -> tuple[float, ...]:
        """Of the tightest limit: the share that is used, and what may still be taken."""
        lines = dict(line.split(b":", 1) for line in self._file.read().splitlines()[:8])
        total, available = (1024 * int(lines[name].split()[0]) for name in (b"MemTotal", b"MemAvailable"))
        for group in self._groups:
            left = group.available_bytes()
            if left < available:
                total, available = group.limit_bytes, left
        return 1.0 - available / total, available / GIB

    def close(self) -> None:
        """Close the file."""
        self._file.close()
