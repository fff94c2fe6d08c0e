"""Keys of a terminal as they are pressed, without Enter; arrows and pages by name."""

import os
import select
import sys
import termios
import tty
from types import TracebackType
from typing import Self

NAMES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[5~": "previous",
    b"\x1b[6~": "next",
    b" ": "next",
    b"k": "up",
    b"j": "down",
}


class Keys:
    """Reads standard input key by key while entered; leaves the terminal as it was."""

    def __init__(self) -> None:
        self._descriptor = sys.stdin.fileno()

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def wait(self, timeout_s: float) -> list[str]:
        """Keys pressed within this time; returns at the first."""
        if not select.select([self._descriptor], [], [], timeout_s)[0]:
            return []
        return split(os.read(self._descriptor, 64))


def split(typed: bytes) -> list[str]:
    """Bytes of a terminal as keys."""
    keys: list[str] = []
    while typed:
        name = next((name for name in NAMES if typed.startswith(name)), None)
        keys.append(NAMES[name] if name else typed[:1].decode("latin-1"))
        typed = typed[len(name) if name else 1 :]
    return keys
