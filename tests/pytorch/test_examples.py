"""The two examples differ by the README's two lines, and train the same model."""

import difflib
from pathlib import Path

import torchrun

ROOT = Path(__file__).parents[2]
PLAIN, BALANCED = (ROOT / "examples" / name for name in ("pytorch_ddp_plain.py", "pytorch_ddp.py"))
TWO_LINES = ["from lbbsp.adapters.pytorch import balance", "model, loader = balance(model, loader)"]


def begun(script, folder):
    log = folder / script.stem
    options = ["--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    return torchrun.started(options, script, [], {}, log), log


def losses(process, log):
    process.join(100)
    assert process.exitcode == 0, log.read_text()
    return [float(line.split()[-1]) for line in log.read_text().splitlines() if line.startswith("epoch")]


def test_the_examples_differ_by_exactly_the_two_lines():
    texts = [path.read_text().splitlines() for path in (PLAIN, BALANCED)]
    changes = [line for line in difflib.ndiff(*texts) if line[0] in "+-?"]
    assert [change[:2] for change in changes] == ["+ ", "+ "]
    assert [change[2:].strip() for change in changes] == TWO_LINES


def test_the_readme_shows_the_two_lines():
    readme = [line.split("  #")[0].strip() for line in (ROOT / "README.md").read_text().splitlines()]
    place = readme.index(TWO_LINES[0])
    assert readme[place : place + 2] == TWO_LINES


def test_both_examples_run_and_learn_the_same(tmp_path):
    jobs = [begun(script, tmp_path) for script in (PLAIN, BALANCED)]
    try:
        plain, balanced = (losses(*job) for job in jobs)
    finally:
        for process, _ in jobs:
            process.terminate()  # torchrun ends its ranks, too
            process.join()
    assert len(plain) == len(balanced) == 3
    assert plain[-1] < plain[0]
    assert all(abs(a - b) < 0.01 for a, b in zip(plain, balanced, strict=True))
