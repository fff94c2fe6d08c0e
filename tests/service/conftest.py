"""A manager in a process of its own, and jobs at it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from harness import ManagerProcess, Ranks
from incarnations import World


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ManagerProcess]:
    """A fresh manager."""
    process = ManagerProcess(tmp_path / "manager.log")
    yield process
    process.stop()


@pytest.fixture(scope="module")
def shared_manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagerProcess]:
    """One manager for many tests: each uses a job id of its own."""
    process = ManagerProcess(tmp_path_factory.mktemp("manager") / "manager.log")
    yield process
    process.stop()


@pytest.fixture
def ranks(shared_manager: ManagerProcess, request: pytest.FixtureRequest):
    """Makes jobs at the shared manager and closes them at the end."""
    made: list[Ranks] = []

    def make(name: str = "", speeds: Sequence[float] = (1000.0, 2000.0), **fields) -> Ranks:
        made.append(Ranks(shared_manager.address, f"{request.node.name[:200]}{name}", speeds, **fields))
        return made[-1]

    yield make
    for job in made:
        job.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """One job name at a manager without sockets."""
    made = World(tmp_path)
    yield made
    assert made.journal is not None
    made.journal.close()
