"""Workers' ends of lanes for tests: each is closed after its test."""

import sys

import pytest
from harness import Ranks, until

from lbbsp.worker.lane import Invitation, Lane

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="lanes are Linux' alone")
MOST = 65_536
OPEN: list[Lane] = []


def connect(invitation: Invitation) -> Lane:
    """Asked for; open when the manager has answered."""
    OPEN.append(Lane(invitation, MOST))
    return OPEN[-1]


def close_all() -> None:
    while OPEN:
        OPEN.pop().close()


def laned(job: Ranks) -> list[bool]:
    return [client._lane is not None and client._lane.open for client in job.clients]


def here(job: Ranks) -> Ranks:
    """Its ranks run on the manager's machine and have their lanes."""
    until(lambda: all(laned(job)), "lanes", job.pump)
    return job
