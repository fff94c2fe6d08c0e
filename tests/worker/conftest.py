"""What tests of a client's line share: seconds that a test may add to, and the manager's end, played by the test."""

import pytest
from scripted import Clock, Script


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def script():
    script = Script()
    yield script
    script.close()
