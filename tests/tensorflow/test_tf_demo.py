"""lbbsp demo --framework tensorflow, small: real workers, real slowdown. Nothing depends on how fast the machine is."""

import json
import os
import subprocess
import sys
import time

import psutil
import pytest
from tf_ranks import ENVIRONMENT

from lbbsp.demo import records, report
from lbbsp.demo.records import EQUAL, LBBSP

SMALL = ["--blocks", "2", "--block-iterations", "50", "--global-batch", "32", "--float64"]


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
    job = [sys.executable, "-m", "lbbsp.demo.tensorflow_job", str(tmp_path)]
    parent = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(60)"
    command = [sys.executable, "-c", parent, *job] if how == "orphaned" else job
    started = subprocess.Popen(command, env=os.environ | ENVIRONMENT)
    try:
        until_s = time.perf_counter() + 30
        while len(workers := running_workers(started.pid)) < 2:
            assert time.perf_counter() < until_s
        (started.kill if how == "orphaned" else started.terminate)()
        assert psutil.wait_procs(workers, timeout=20)[1] == []
    finally:
        started.kill()
        started.wait()


def running_workers(pid):
    below = psutil.Process(pid).children(recursive=True)
    return [process for process in below if "lbbsp.demo.tensorflow_worker" in process.cmdline()]


def test_a_worker_that_fails_ends_the_job_and_is_told(tmp_path):
    """No settings in the folder: both fail at once, and their trace is what is told."""
    job = [sys.executable, "-m", "lbbsp.demo.tensorflow_job", str(tmp_path)]
    done = subprocess.run(job, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "FileNotFoundError" in done.stderr
