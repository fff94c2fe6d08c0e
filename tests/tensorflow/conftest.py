"""Tests of the TensorFlow adapter: skipped as a whole where TensorFlow is not installed."""

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "worker"))
MISSING = [name for name in ("tensorflow", "tf_keras") if importlib.util.find_spec(name) is None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not MISSING:
        return
    skip = pytest.mark.skip(reason=f"{' and '.join(MISSING)} not installed: pip install 'lbbsp[test-tensorflow]'")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(skip)
