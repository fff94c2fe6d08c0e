"""Whether the process that started this one still is: an embedded manager must not outlive its rank 0.

Knows nothing of what follows from it.
"""

import os


def open_end_of(parent: int | None) -> int | None:
    """A descriptor that becomes readable when that process ends; None where this system can't tell by one."""
    if parent is None or not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(parent)
    except OSError:  # an old kernel, no more files, or it has ended already
        return None


def orphaned(parent: int) -> bool:
    """Whether that process is our parent no longer."""
    return os.getppid() != parent
