"""Versions, cores, limits and sensors of this machine. Reads only; imports no framework."""

import math
import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import zmq

from lbbsp import __version__
from lbbsp.doctor.finding import Finding, Level
from lbbsp.protocol import PROTOCOL
from lbbsp.worker.cgroup import cpu_quota_cores
from lbbsp.worker.sensors import Sensors

FRAMEWORKS = ("torch", "tensorflow", "tensorflow-cpu")
FILES_WANTED = 4_096
SENSE_S = 0.02
READS = 15
SENSOR_FIXES = {
    "psi": "start the kernel with psi=1 (CONFIG_PSI)",
    "run_delay": "a kernel with CONFIG_SCHED_INFO keeps it",
    "running": "mount /proc in the container",
}


def machine_findings() -> Iterator[Finding]:
    """All of this machine."""
    yield from versions()
    yield from cores(os.sched_getaffinity(0), os.cpu_count() or 1, cpu_quota_cores())
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield sensors(sense())


def versions() -> Iterator[Finding]:
    """Of all that has a part in it."""
    python = platform.python_version()
    yield Finding("lbbsp", f"{__version__}, protocol {PROTOCOL}, Python {python} ({sys.executable})")
    if zmq.has("curve"):
        yield Finding("ZeroMQ", f"{zmq.zmq_version()}, pyzmq {zmq.__version__}, with CURVE")
    else:
        yield Finding(
            "ZeroMQ",
            f"{zmq.zmq_version()} has no CURVE, which managers of a job's own need",
            Level.PROBLEM,
            "pip install --force-reinstall --only-binary :all: pyzmq",
        )
    found = [f"{name} {number}" for name in FRAMEWORKS if (number := _version(name))]
    if found:
        yield Finding("frameworks", ", ".join(found))
    else:
        yield Finding("frameworks", "none is installed here", Level.NOTE, "pip install lbbsp[torch]")


def cores(allowed: set[int], total: int, quota: float | None) -> Iterator[Finding]:
    """Cores that we may use; a quota stops processes in bursts that nobody can forecast."""
    text = f"{len(allowed)} of {total} may be used"
    if len(allowed) == 1:
        yield Finding(
            "cores",
            text,
            Level.NOTE,
            "workers on one core only share it: give each worker a core of its own, or another machine",
        )
    else:
        yield Finding("cores", text)
    if quota is None:
        yield Finding("cgroup", "no quota on processor time")
    elif quota < len(allowed):
        yield Finding(
            "cgroup",
            f"quota of {quota:g} cores, {len(allowed)} are visible: the kernel stops processes in bursts",
            Level.NOTE,
            f"raise the quota to {len(allowed)} cores, or start at most {max(1, math.floor(quota))} busy threads",
        )
    else:
        yield Finding("cgroup", f"quota of {quota:g} cores, enough for all that are visible")


def open_files(limit: int) -> Finding:
    """A manager needs one file a connection."""
    if 0 <= limit < FILES_WANTED:
        return Finding(
            "open files",
            f"limit {limit}: a manager here serves at most {max(0, limit - 64)} ranks",
            Level.NOTE,
            f"ulimit -n {FILES_WANTED} before `lbbsp manager`",
        )
    return Finding("open files", f"limit {limit if limit >= 0 else 'none'}")


def sense() -> dict[str, float]:
    """All sensors; they take turns, so that the last of them has been read twice."""
    reader = Sensors()
    for _ in range(READS):
        reader.read()
        time.sleep(SENSE_S)
    readings = dict(zip(reader.names, reader.read(), strict=True))
    reader.close()
    return readings


def sensors(readings: dict[str, float]) -> Finding:
    """Which there are; predictors do without the others."""
    missing = [name for name, value in readings.items() if math.isnan(value)]
    text = f"{len(readings) - len(missing)} of {len(readings)} can be read"
    if not missing:
        return Finding("sensors", text)
    fixes = [fix for start, fix in SENSOR_FIXES.items() if any(name.startswith(start) for name in missing)]
    fix = "; ".join(fixes) or "none is needed: predictors do without"
    return Finding("sensors", f"{text}; missing: {', '.join(missing)}", Level.NOTE, fix)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
