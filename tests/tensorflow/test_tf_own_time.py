"""Rule 7: own time is the rank's own work and never a wait, against a trace of TensorFlow's own profiler.

The bound is far from what is measured: 5 % on a quiet machine (bench/tensorflow_trace.py).
"""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parent.parent.parent / "bench" / "tensorflow_trace.py"


def test_own_time_is_that_of_the_profilers_trace(tmp_path):
    """Rank 1 sleeps 60 ms before each step: that is its own time, and none of rank 0's."""
    options = ["--iterations", "12", "--global-batch", "128", "--sleep-ms", "60", "--json", str(tmp_path / "t.json")]
    done = subprocess.run(
        [sys.executable, str(BENCH), *options], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = json.loads((tmp_path / "t.json").read_text())["ranks"]
    assert all(rank["difference"] < 0.25 for rank in ranks), ranks
    assert ranks[1]["reported_ms"] > 60
