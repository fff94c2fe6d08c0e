"""Who a worker is, whatever its rank number: what is learnt of a machine and device follows these names."""

import os
import socket
from pathlib import Path


def machine_name(boot_id: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """Host name and the start of its boot id: one name for all processes of a host, another for each host."""
    try:
        boot = boot_id.read_text().strip()[:8]
    except OSError:
        boot = "unknown"
    return f"{socket.gethostname()}/{boot}"


def device_name(kind: str, index: int | None) -> str:
    """The device: `cuda:1`, or `cpu:0,3` for a process that may use cores 0 and 3 only."""
    if kind != "cpu":
        return f"{kind}:{index or 0}"
    try:
        cores = sorted(os.sched_getaffinity(0))
    except AttributeError:
        return "cpu"
    if len(cores) == (os.cpu_count() or 0):
        return "cpu"
    return "cpu:" + ",".join(map(str, cores))[:64]
