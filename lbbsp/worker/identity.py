"""Who a worker is, whatever its rank number, and of which job: what is learnt follows these names."""

import os
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path


def machine_name(boot_id: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """Host name and the start of its boot id: one name for all processes of a host, another for each host."""
    try:
        boot = boot_id.read_text().strip()[:8]
    except OSError:
        boot = "unknown"
    return f"{socket.gethostname()}/{boot}"


def run_name(environment: Mapping[str, str] = os.environ) -> str | None:
    """The job as torchrun names it, the same in all its restarts; None where torchrun did not start us.

    Its run id; where the user gave none, the agent that started us, by process id and start time, if it may restart us.
    """
    run = environment.get("TORCHELASTIC_RUN_ID")
    if run is None:
        return None
    if environment.get("TORCHELASTIC_MAX_RESTARTS") == "0" and (run == "none" or _is_drawn(run)):
        return None
    if run != "none":
        return f"torchrun {run}"[:256]
    agent = os.getppid()
    return f"torchrun {machine_name()} {agent} {_started(agent)}"[:256]


def _is_drawn(run: str) -> bool:
    """Whether this run id was drawn by chance, as torchrun --standalone does: it never comes again."""
    try:
        return str(uuid.UUID(run)) == run
    except ValueError:
        return False


def _started(process: int) -> str:
    """When a process began, in ticks since boot: ids come again."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


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
