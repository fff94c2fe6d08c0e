"""The scripted manager lives with the worker's tests, the manager's process with the service's."""

import sys
from pathlib import Path

for folder in ("worker", "service"):
    sys.path.insert(0, str(Path(__file__).parent.parent / folder))
