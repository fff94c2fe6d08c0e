"""lbbsp demo --framework tensorflow, small: real workers, real slowdown. Nothing depends on how fast the machine is."""

import json
import os
import subprocess
import sys

import psutil
import pytest
from tf_ranks import ENVIRONMENT

from lbbsp.demo import records, report
from lbbsp.demo.records import EQUAL, LBBSP

SMALL = ["--blocks", "4", "--block-iterations", "25", "--global-batch", "32", "--float64"]


def test_float64_losses_of_both_ways_agree_in_every_iteration(tmp_path):
    rows = tmp_path / "rows"
    files = ["--figure", str(tmp_path / "demo.png"), "--json", str(tmp_path / "r.json"), "--records", str(rows)]
    command = [sys.executable, "-m", "lbbsp", "demo", "--framework", "tensorflow", *SMALL, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = [list(records.Tail(records.rows_file(rows, rank)).new_rows()) for rank in range(2)]
    equal, balanced = (report.global_losses(ranks, mode) for mode in (EQUAL, LBBSP))
    assert len(equal) >= 100
    assert max(abs(a - b) for a, b in zip(equal, balanced, strict=True)) < 1e-9
    assert len({row.samples for row in ranks[0] if row.mode == LBBSP}) > 1
    assert all(row.own_s > row.draw_s > 0 and row.wait_s > 0 for rank in ranks for row in rank)
    assert json.loads((tmp_path / "r.json").read_text())["seed"] == 1
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("how", ["terminated", "orphaned"])
def test_workers_end_with_the_job_that_started_them(tmp_path, how):
    """The workers wait for the go, which never comes."""
    records.save_settings(tmp_path, records.Settings(global_batch=32))
    from lbbsp.demo import digits

    digits.save(tmp_path / "digits.npz", enlarged=1)
    job = [sys.executable, "-m", "lbbsp.demo.tensorflow_job", str(tmp_path)]
    shell = ["sh", "-c", '"$0" "$@"; exit $?', *job] if how == "orphaned" else job
    started = subprocess.Popen(shell, env=os.environ | ENVIRONMENT)
    try:
        while not all((tmp_path / f"pid{rank}").exists() for rank in range(2)):
            assert started.poll() is None
        workers = [psutil.Process(int((tmp_path / f"pid{rank}").read_text())) for rank in range(2)]
        (started.kill if how == "orphaned" else started.terminate)()
        assert len(psutil.wait_procs(workers, timeout=20)[1]) == 0
    finally:
        started.kill()
        started.wait()
