"""What can't be served is refused on every rank, and says what works; what can be read by position is."""

import pytest
import tf_cases
from tf_ranks import run

REFUSALS = {
    "mirrored": "MultiWorkerMirroredStrategy",
    "one_device": "MultiWorkerMirroredStrategy",
    "managers": "give every rank the same manager",
    "empty_batches": "use 1 or more",
    "unknown_size": "from_tensor_slices",
    "no_batch": "global_batch=",
    "bounds": "global batch 8",
    "optimizer": "tf.keras.optimizers",
    "reduction": "sum, mean, keras",
    "scope": "after the scope",
}


@pytest.mark.parametrize("what", REFUSALS)
def test_refused_on_every_rank_with_what_works(what: str) -> None:
    alone = what in ("mirrored", "one_device")
    for text in run(0 if alone else 2, tf_cases.refused, what):
        assert text.partition(":")[0] in ("UnsupportedError", "ConfigError", "BoundsError")
        assert REFUSALS[what] in text


@pytest.fixture(scope="module")
def read():
    return run(0, tf_cases.pipelines)[0]


ROWS = [7, 2, 3]
X = [[14.0, 15.0], [4.0, 5.0], [6.0, 7.0]]
READ = {
    "arrays": ((X, ROWS), ()),
    "tensors": ({"x": X, "name": [b"7", b"2", b"3"]}, ()),
    "sequence": ({"x": X, "y": ROWS}, ()),
    "pipeline": (([[a + 1, b + 1] for a, b in X], ROWS), (4, False, True, 3)),
    "pipeline_dict": ([[2 * a, 2 * b] for a, b in X], (4, True, False, 0)),
    "pipeline_range": ([19, 9, 11], (4, False, False, 0)),
}
REFUSED = {
    "filtered": "Filter",
    "repeated": "Repeat",
    "generated": "can't be read by position",
    "unbatched": ".batch(GLOBAL_BATCH)",
    "generator": "no positions",
    "keras_batches": "batches of its own",
    "unequal": "arrays of one length",
    "scalar": "no samples",
}


@pytest.mark.parametrize("name", READ)
def test_read_by_position(name, read) -> None:
    assert read[name] == READ[name]


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_positions_is_refused(name, read) -> None:
    assert REFUSED[name] in read[name]


def test_a_loop_that_cannot_be_served_and_a_world_of_one() -> None:
    errors = run(1, tf_cases.misused)[0]
    assert "loop in Python" in errors["graph_loop"]
    assert "draw in the thread that trains" in errors["thread"]
    assert "strategy.run()" in errors["outside_run"]
    assert "tf_keras" in errors["fit"]
    assert "balanced already" in errors["twice"]
    assert "closed" not in errors
    assert errors["batches"] == "[8, 8, 4]"


def test_what_goes_wrong_while_an_optimizer_makes_its_variables_reaches_the_caller() -> None:
    """They are made in a thread of their own; a peer that dies meanwhile must end this rank, not be lost."""
    text = "no peer for 1 variables"
    assert run(0, tf_cases.builds_that_fail) == [{"keras": text, "tf_keras": text, "tf_keras_legacy": text}]


def test_disabled() -> None:
    assert run(2, tf_cases.disabled) == [[4, 4, 2], [4, 4, 2]]
