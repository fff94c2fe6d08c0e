"""The two examples differ by two lines, and train the same model."""

import difflib
import json
import os
import subprocess
import sys
from pathlib import Path

from tf_ranks import ENVIRONMENT, addresses

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
PLAIN, BALANCED = EXAMPLES / "tensorflow_plain.py", EXAMPLES / "tensorflow_train.py"


def losses(script: Path) -> list[float]:
    workers = addresses(2)
    processes = []
    for index in range(2):
        config = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})
        environment = os.environ | ENVIRONMENT | {"TF_CONFIG": config}
        processes.append(
            subprocess.Popen(
                [sys.executable, str(script)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        texts = [process.communicate(timeout=90) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], texts
    shown = [[float(line.split()[-1]) for line in out.splitlines() if line.startswith("epoch")] for out, _ in texts]
    assert shown[0] == shown[1], "both workers hold the same model"
    return shown[0]


def test_the_examples_differ_by_two_lines() -> None:
    texts = [path.read_text().splitlines() for path in (PLAIN, BALANCED)]
    changes = [line for line in difflib.ndiff(*texts) if line[0] in "+-"]
    assert [line[2:].strip() for line in changes if line[0] == "+"] == [
        "from lbbsp.adapters.tensorflow import balance",
        'dataset, optimizer = balance(dataset, optimizer, strategy, reduction="sum")',
    ]
    assert len([line for line in changes if line[0] == "-"]) == 1


def test_both_examples_run_and_learn_the_same() -> None:
    plain, balanced = losses(PLAIN), losses(BALANCED)
    assert len(plain) == len(balanced) == 3
    assert plain[-1] < plain[0]
    assert all(abs(a - b) < 0.05 for a, b in zip(plain, balanced, strict=True)), (plain, balanced)
