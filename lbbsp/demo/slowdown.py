"""What makes one worker slow: a busy process on its core, or, where nothing can be pinned, pauses of the worker itself.

A process of its own, `python -m lbbsp.demo.slowdown PARENT busy CORE` or `... PARENT pauses PID`; it ends when the
process PARENT, which starts it, does, killed or not. Halves the worker's speed either way. Knows nothing of training.
"""

import os
import signal
import sys
import time
from collections.abc import Callable

PERIOD_S = 0.01
LOOK_EVERY_S = 0.2


def busy(core: int, alive: Callable[[], bool]) -> None:
    """Use up what one core gives to this process."""
    os.sched_setaffinity(0, {core})
    while alive():
        until_s = time.perf_counter() + LOOK_EVERY_S
        while time.perf_counter() < until_s:
            pass


def pauses(pid: int, alive: Callable[[], bool]) -> None:
    """Stop and continue a process, half of the time each."""
    try:
        while alive():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(PERIOD_S / 2)
            os.kill(pid, signal.SIGCONT)
            time.sleep(PERIOD_S / 2)
    except ProcessLookupError:
        return
    finally:
        _continue(pid)


def _continue(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return


def main(parent: int, how: str, target: int) -> None:
    """Slow down until the parent is gone; a SIGTERM leaves nothing stopped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    (busy if how == "busy" else pauses)(target, lambda: os.getppid() == parent)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
