"""The journal killed at random points of its writing (bench/journal_kills.py): what comes up was true."""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "journal_kills.py"


def test_every_restart_comes_up_in_a_state_that_was_true(tmp_path):
    out = tmp_path / "counts.json"
    subprocess.run(
        [sys.executable, str(BENCH), "--kills", "20", "--seed", "5", "--json", str(out)], check=True, timeout=100
    )
    counts = json.loads(out.read_text())
    assert counts["kills"] == 20
    assert counts["states"] > 30
    assert counts["torn"] > 2
    assert [counts[name] for name in ("untrue", "older_than_synced", "versions_back", "refused")] == [0, 0, 0, 0]
