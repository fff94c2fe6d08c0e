"""Tests of the TensorFlow adapter: skipped as a whole where TensorFlow is not installed."""

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "worker"))

if importlib.util.find_spec("tensorflow") is None:
    collect_ignore_glob = ["test_*.py"]
