"""Rule 7: own time is the rank's own work and never a wait, against a trace of TensorFlow's own profiler.

The bound is far from what is measured: 1 to 2 % (bench/tensorflow_trace.py).
"""

from pathlib import Path
from typing import Any

from random_manager import ScriptedManager
from tf_ranks import run

from lbbsp.demo import digits

BENCH = Path(__file__).parent.parent.parent / "bench"


def case(rank: int, folder: str) -> Any:
    import sys

    sys.path.insert(0, str(BENCH))
    import tensorflow_trace

    options = tensorflow_trace.Options(global_batch=128, iterations=12, sleep_ms=60.0)
    return tensorflow_trace.traced(rank, options, Path(folder))


def test_own_time_is_that_of_the_profilers_trace(tmp_path: Path) -> None:
    """Rank 1 sleeps 60 ms before each step: that is its own time, and none of rank 0's."""
    digits.save(tmp_path / "digits.npz")
    with ScriptedManager(9) as manager:
        ranks = run(2, case, str(tmp_path), env=manager.env)
    assert all(rank["difference"] < 0.25 for rank in ranks), ranks
    assert ranks[1]["reported_ms"] > 60
