"""The two examples differ by the README's two lines, and train the same model."""

import difflib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLAIN, BALANCED = (ROOT / "examples" / name for name in ("pytorch_ddp_plain.py", "pytorch_ddp.py"))
TWO_LINES = ["from lbbsp.adapters.pytorch import balance", "model, loader = balance(model, loader)"]


def torchrun(script):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    local = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        [*command, *local, str(script)], capture_output=True, text=True, timeout=100, env=environment, check=False
    )


def losses(script):
    done = torchrun(script)
    assert done.returncode == 0, done.stdout + done.stderr
    return [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("epoch")]


def test_the_examples_differ_by_exactly_the_two_lines():
    texts = [path.read_text().splitlines() for path in (PLAIN, BALANCED)]
    changes = [line for line in difflib.ndiff(*texts) if line[0] in "+-?"]
    assert [change[:2] for change in changes] == ["+ ", "+ "]
    assert [change[2:].strip() for change in changes] == TWO_LINES


def test_the_readme_shows_the_two_lines():
    readme = [line.split("  #")[0].strip() for line in (ROOT / "README.md").read_text().splitlines()]
    place = readme.index(TWO_LINES[0])
    assert readme[place : place + 2] == TWO_LINES


def test_both_examples_run_and_learn_the_same():
    plain, balanced = losses(PLAIN), losses(BALANCED)
    assert len(plain) == len(balanced) == 3
    assert plain[-1] < plain[0]
    assert all(abs(a - b) < 0.01 for a, b in zip(plain, balanced, strict=True))
