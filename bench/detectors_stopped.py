"""A rank of a real job stopped by SIGSTOP, watched through a manager of its own, by the clock; for detectors_real.py.

It stops itself in the middle of a step: of one that has reported, and is stopped in the reduction, no other rank is
ahead. Times in seconds.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lbbsp.protocol import Look
from lbbsp.top.asking import Asker


def stopped(script: str, slow: int) -> float | None:
    """Seconds from the SIGSTOP of one rank until the manager calls it silent; None: not in 20 s."""
    with tempfile.TemporaryDirectory() as folder, Path(f"{folder}/log").open("wb") as log:
        command = [sys.executable, "-m", "lbbsp", "manager", "--bind", "tcp://127.0.0.1:0"]
        manager = subprocess.Popen(command, stderr=log)
        while "listening on " not in Path(f"{folder}/log").read_text():
            time.sleep(0.05)
        address = Path(f"{folder}/log").read_text().rpartition("listening on ")[2].split("\n")[0]
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script]
        job = subprocess.Popen(
            [*launcher, "--worker", "--case", "stopped", "--sizes", "lbbsp", "--out", f"{folder}/out"],
            env=os.environ | {"LBBSP_MANAGER": address, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            return _watch(Path(f"{folder}/out.onset"), address, slow)
        finally:
            job.terminate()
            job.wait()
            manager.terminate()
            manager.wait()


def _watch(onset: Path, address: str, slow: int) -> float | None:
    deadline_s = time.perf_counter() + 60
    while not onset.exists() and time.perf_counter() < deadline_s:
        time.sleep(0.05)
    began_s, asker = time.perf_counter(), Asker(address)
    try:
        while time.perf_counter() - began_s < 20:
            time.sleep(0.1)
            if any(flag.rank == slow and "silent" in flag.detectors for flag in asker.ask(Look(job="real")).flags):
                return round(time.perf_counter() - began_s, 1)
        return None
    finally:
        os.kill(int(onset.read_text()), signal.SIGCONT)
        asker.close()
