"""The scripted manager lives with the worker's tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "worker"))
