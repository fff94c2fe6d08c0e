"""Starts the demo's TensorFlow workers, as torchrun does for PyTorch: `python -m lbbsp.demo.tensorflow_job FOLDER`.

One process for each worker, with its TF_CONFIG. All end when one fails, when this process is terminated, or when the
one that started it is gone. Knows nothing of training.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from types import FrameType

from lbbsp.demo.records import WORKERS

POLL_S = 0.1
QUIET = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
"""One process for each device is what the demo shows, on CPUs; TensorFlow's own chatter hides what went wrong."""


def addresses(count: int) -> list[str]:
    """Free ports of this machine."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return found


def main(folder: str) -> int:
    """Run the workers; the exit code of the first that failed, else 0."""
    signal.signal(signal.SIGTERM, _exit)
    parent, workers = os.getppid(), addresses(WORKERS)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes.extend(_start(folder, workers, rank) for rank in range(WORKERS))
        while os.getppid() == parent:
            codes = [process.poll() for process in processes]
            failed = next((code for code in codes if code), None)
            if failed is not None or None not in codes:
                return failed or 0
            time.sleep(POLL_S)
        return 1
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _start(folder: str, workers: list[str], rank: int) -> "subprocess.Popen[bytes]":
    """In a session of its own, as torchrun's workers: Linux may share cores by session."""
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
    command = [sys.executable, "-m", "lbbsp.demo.tensorflow_worker", folder]
    environment = os.environ | QUIET | {"TF_CONFIG": json.dumps(config)}
    return subprocess.Popen(command, env=environment, start_new_session=True)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
