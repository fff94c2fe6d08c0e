"""What a sizing core told, another one of the same job goes on from: same plans; what does not fit changes nothing."""

import copy
import math

import msgspec
import numpy as np
import pytest

from lbbsp.core.bounds import Bounds
from lbbsp.core.manager import BatchSizeManager, JobSpec
from lbbsp.core.state import take, told
from lbbsp.predictors import PREDICTORS
from lbbsp.service.journal_records import decode, encode

RANKS, X = 4, 400
KINDS = [("last", "speed"), ("ema", "adaptive"), ("ema", "leader-straggler"), ("ema", "linear")]


def spec(ranks: int = RANKS) -> JobSpec:
    bounds = Bounds(X, np.zeros(ranks, np.int64), np.full(ranks, X))
    return JobSpec(bounds, lookahead=1, sensors=("load",), identities=tuple(f"m{rank}" for rank in range(ranks)))


def core(predictor: str = "ema", rule: str = "speed", ranks: int = RANKS) -> BatchSizeManager:
    return BatchSizeManager(spec(ranks), predictor, rule=rule)


def drive(sizer: BatchSizeManager, first: int, iterations: int) -> list[list[int]]:
    """Reports that follow from the iteration alone and from the plan before; the sizes of each plan."""
    sizes, plans = [X // RANKS] * RANKS, []
    for iteration in range(first, first + iterations):
        random = np.random.default_rng(iteration)
        for rank in range(RANKS):
            load = float(random.uniform())
            own_s = (sizes[rank] + 20) / (1000.0 * (rank + 1)) * (1.0 + load)
            made = sizer.report(rank, iteration, sizes[rank], own_s, sensors=(load,))
        sizer.catch_up()
        sizes = made.sizes.tolist()
        plans.append(sizes)
    return plans


def through_bytes(sizer: BatchSizeManager) -> dict:
    return decode(encode(sizer.told()), dict)


def alike(one, other) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, np.ndarray):  # the layout of an array in memory moves last digits
        return one.shape == other.shape and np.allclose(one, other, rtol=1e-9, atol=1e-12, equal_nan=True)
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=1e-9) or (math.isnan(one) and math.isnan(other))
    return one == other


@pytest.mark.parametrize(("predictor", "rule"), [*((name, "speed") for name in sorted(PREDICTORS)), *KINDS])
def test_it_goes_on_exactly_as_if_nothing_had_happened(predictor, rule):
    options = {"predictor": predictor, "rule": rule}
    first = core(**options)
    drive(first, 0, 30)  # before arima's first fit, which runs beside
    second = core(**options)
    assert second.resume(through_bytes(first)) == []
    assert alike(through_bytes(second), through_bytes(first))
    assert drive(second, 30, 9) == drive(first, 30, 9)
    assert alike(through_bytes(second), through_bytes(first))


def test_a_fresh_core_can_be_told_too():
    assert core().resume(through_bytes(core())) == []


def test_what_is_told_is_of_bounded_size():
    for predictor in PREDICTORS:
        sizer = core(predictor)
        drive(sizer, 0, 20)
        early = len(encode(sizer.told()))
        drive(sizer, 20, 300)
        assert len(encode(sizer.told())) < 1.3 * early + 1000


def test_another_predictor_takes_the_curves_and_the_last_speeds():
    first, second = core("arx"), core("ema")
    drive(first, 0, 60)
    assert second.resume(through_bytes(first)) == ["_forecaster"]
    assert np.array_equal(second._fit.theta_samples, first._fit.theta_samples)
    assert np.array_equal(second._forecaster.last, first._forecaster.last)
    assert second.stats().sizes.tolist() == first.stats().sizes.tolist()
    assert sum(drive(second, 60, 1)[0]) == X


def broken_everywhere(state, path=()):
    """The state with one value replaced, for each place and several foreign values."""
    for name, value in list(state.items()):
        for other in (None, "text", -1, [1, 2], {"class": "Other"}, np.zeros(7), np.zeros((RANKS, 2), np.int64)):
            if type(other) is not type(value) or isinstance(value, np.ndarray):
                changed = copy.deepcopy(state)
                changed[name] = other
                yield (*path, name), changed
        if isinstance(value, dict):
            for place, inner in broken_everywhere(value, (*path, name)):
                yield place, state | {name: inner}


def test_a_part_of_another_kind_or_shape_is_left_out_whole():
    first = core()
    drive(first, 0, 30)
    state = through_bytes(first)
    fresh = through_bytes(core())
    places = 0
    for place, changed in broken_everywhere(state):
        second = core()
        left = second.resume(changed)
        now = through_bytes(second)
        if place[0] in left:
            assert alike(now[place[0]], fresh[place[0]]) or place[0] == "_forecaster"
        for name in state:
            assert name == place[0] or alike(now[name], state[name])
        places += 1
    assert places > 300


def test_arrays_that_came_back_can_be_written_to_and_are_not_shared():
    first = core()
    drive(first, 0, 10)
    state = first.told()
    second = core()
    second.resume(state)
    second._fit.theta_samples[:] = 7.0
    assert not (first._fit.theta_samples == 7.0).any()


def test_no_code_is_ever_loaded():
    with pytest.raises(msgspec.MsgspecError):
        decode(msgspec.msgpack.encode(msgspec.msgpack.Ext(9, b"cos\nsystem\n")), object)

    class Foreign:
        pass

    thing = core()
    thing.foreign = Foreign()
    assert "foreign" not in told(thing)
    assert take(thing, {"foreign": {"class": "Foreign", "x": 1}}) == ["foreign"]
