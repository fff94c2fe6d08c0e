"""The two examples differ by two lines, and train the same model."""

import difflib
from pathlib import Path

import tf_cases
from tf_ranks import run

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
PLAIN, BALANCED = EXAMPLES / "tensorflow_plain.py", EXAMPLES / "tensorflow_train.py"


def losses(script: Path) -> list[float]:
    first, second = run(2, tf_cases.example, str(script))
    assert first == second, "both workers hold the same model"
    return first


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
