"""The demo itself, small: real torchrun workers, real slowdown. Nothing here depends on how fast the machine is."""

import json
import subprocess
import sys

import pytest

from lbbsp.demo import records, report
from lbbsp.demo.records import EQUAL, LBBSP

SMALL = ["--blocks", "4", "--block-iterations", "50", "--global-batch", "32", "--float64"]


def demo(folder, *arguments):
    command = [sys.executable, "-m", "lbbsp", "demo", "--figure", str(folder / "demo.png"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.parametrize("optimizer", ["adamw"])
def test_float64_losses_of_both_ways_agree_in_each_of_200_iterations(tmp_path, optimizer):
    rows = tmp_path / "rows"
    done = demo(tmp_path, *SMALL, "--optimizer", optimizer, "--json", str(tmp_path / "r.json"), "--records", str(rows))
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = [list(records.Tail(records.rows_file(rows, rank)).new_rows()) for rank in range(2)]
    equal, balanced = (report.global_losses(ranks, mode) for mode in (EQUAL, LBBSP))
    assert len(equal) >= 200
    assert max(abs(a - b) for a, b in zip(equal, balanced, strict=True)) < 1e-9
    assert len({row.samples for row in ranks[0] if row.mode == LBBSP}) > 1
    assert json.loads((tmp_path / "r.json").read_text())["seed"] == 1
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert "efficiency" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--global-batch", "33"], "needs an even one"), (["--global-batch", "16"], "at least 32")],
)
def test_what_cannot_be_run_is_refused_in_one_line(tmp_path, arguments, message):
    done = demo(tmp_path, *arguments)
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
