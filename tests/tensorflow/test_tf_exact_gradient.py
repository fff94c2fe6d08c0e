"""Rule 4 on real processes: gradients and weights as in one process that is fed whole global batches."""

import numpy as np
import pytest
from random_manager import ScriptedManager
from tf_loops import GLOBAL_BATCH, PATTERNS, STEPS, train
from tf_ranks import run


@pytest.fixture(scope="module")
def trained():
    """All patterns in one job of two ranks: starting a cluster takes longer than training."""
    with ScriptedManager(seed=1) as manager:
        yield run(2, train, list(PATTERNS), env=manager.env, timeout_s=110)


@pytest.mark.parametrize("name", PATTERNS)
def test_gradients_and_weights_are_those_of_one_process(name, trained) -> None:
    first, second = (results[name] for results in trained)
    for result in (first, second):
        assert result.gradient_error < 1e-6
        for weight, expected in zip(result.weights, result.expected, strict=True):
            np.testing.assert_allclose(weight, expected, atol=1e-9)
        np.testing.assert_allclose(result.losses, result.expected_losses, rtol=1e-6)
        assert result.traces <= 2
    sizes = np.array([first.sizes, second.sizes])
    full = sizes.sum(axis=0) == GLOBAL_BATCH
    assert full.sum() >= STEPS // 2
    if name.startswith("empty_part"):
        assert sizes[:, ~full].tolist() == [[1] * (~full).sum()] * 2, "one sample each, one of them weighed 0"
    moved, may_move = np.diff(sizes[0]) != 0, may_move_before(name)
    assert 2 * moved[may_move].sum() >= may_move.sum(), "sizes stood still"
    assert not moved[~may_move].any(), "an iterator's first draws use the sizes in force when it began"


def may_move_before(name: str) -> np.ndarray:
    """Which of the draws 1 .. STEPS - 1 may have other sizes than the one before: not 1 .. lookahead of an iterator."""
    pattern = PATTERNS[name]
    draw = np.arange(1, STEPS) % -(-pattern.samples // GLOBAL_BATCH)
    return (draw == 0) | (draw > pattern.options.get("lookahead", 0))
