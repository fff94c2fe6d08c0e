"""Keras: fit() of tf_keras, train_step() of Keras 3; exact under changing sizes."""

import numpy as np
import pytest
import tf_cases
from random_manager import ScriptedManager
from tf_ranks import run


@pytest.mark.parametrize("case", [tf_cases.fitted, tf_cases.keras3_train_step])
def test_exact_under_changing_sizes(case) -> None:
    with ScriptedManager(2) as manager:
        ranks = run(2, case, env=manager.env)
    for one in ranks:
        for weight, expected in zip(one["weights"], one["expected"], strict=True):
            np.testing.assert_allclose(weight, expected, atol=1e-7)
        assert one.get("traces", 0) <= 2
        assert len({str(size) for size in one["sizes"]}) > 5


def test_keras_3_fit_still_fails_upstream() -> None:
    """When this fails, fit() can be served."""
    assert run(2, tf_cases.keras3_fit) != ["works", "works"]
