"""Memory bounds: found before they are crossed, never crossed twice, tightened and relaxed; in the manager too."""

import logging
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_manager import step

from lbbsp.core.bounds import Bounds
from lbbsp.core.manager import BatchSizeManager, JobSpec
from lbbsp.core.memory import MemoryModel, Reading
from lbbsp.core.rules import Adaptive
from lbbsp.core.sizing import fits
from lbbsp.errors import ConfigError


def device(model, size, fixed, per_sample, budget):
    """One iteration of a device that tells its peaks; True where it fitted."""
    if fixed + per_sample * size > budget:
        model.failed(size, budget)
        return False
    model.learn(Reading(size, fixed + per_sample * size, budget))
    return True


@given(st.floats(0, 0.6), st.integers(20, 500), st.integers(8, 16))
@settings(max_examples=80, deadline=None)
def test_peaks_bound_sizes_before_memory_ends(fixed, limit, start):
    model, size = MemoryModel(1000), start
    for _ in range(30):
        assert device(model, size, fixed, (1.0 - fixed) / limit, 1.0)
        size = min(model.bound(), 1000)
    assert size > 0.8 * limit - 2


@given(st.integers(20, 500), st.lists(st.integers(1, 1000), min_size=1, max_size=30))
@settings(max_examples=80, deadline=None)
def test_without_peaks_no_bound_is_crossed_twice(limit, wanted):
    model, failed = MemoryModel(1000), []
    for size in (min(one, model.bound()) for one in wanted):
        if size > limit:
            assert all(size < earlier for earlier in failed)
            failed.append(size)
            model.failed(size)
            assert model.bound() < size
        else:
            model.learn(Reading(size, math.nan, math.nan))


def test_bounds_tighten_and_relax_with_what_others_leave():
    model = MemoryModel(1000)
    for size in (50, 100):
        device(model, size, 0.1, 0.001, 1.0)
    alone = model.bound()
    model.learn(Reading(100, 0.2, 0.25))
    assert model.bound() < 150
    model.learn(Reading(100, 0.2, 1.0))
    assert model.bound() == alone


def test_a_ceiling_lifts_only_when_clearly_more_memory_is_free():
    model = MemoryModel(1000)
    model.learn(Reading(60, math.nan, 1.0))
    lowered = model.failed(100, 1.0)
    assert lowered == 90
    model.learn(Reading(60, math.nan, 1.05))
    assert model.bound() == 90
    model.learn(Reading(60, math.nan, 2.0))
    assert model.bound() == 180


def test_a_size_that_worked_once_and_fails_now_is_lowered():
    model = MemoryModel(100)
    model.learn(Reading(80, math.nan, math.nan))
    assert model.failed(80) == 72


# --- in the manager


def cuda_job(kinds=("cuda", "cuda"), most=96):
    return JobSpec(Bounds(96, np.ones(2), np.full(2, most)), device_kinds=kinds)


def play(manager, iterations, bound=lambda k: 0, slopes=(0.001, 0.003), start=0, sizes=(48, 48)):
    sizes = np.array(sizes)
    for k in range(start, start + iterations):
        for rank in range(2):
            made = manager.report(
                rank,
                k,
                int(sizes[rank]),
                0.02 + slopes[rank] * int(sizes[rank]),
                max_samples=bound(k) if not rank else 0,
            )
        sizes = made.sizes
    return sizes


@pytest.mark.parametrize(("kinds", "adaptive"), [(("cuda", "cuda"), True), (("cpu", "cuda"), True), ((), False)])
def test_accelerators_choose_the_adaptive_rule_in_mixed_jobs_too(kinds, adaptive):
    manager = BatchSizeManager(cuda_job(kinds))
    assert isinstance(manager._rule, Adaptive) == adaptive
    assert play(manager, 20).tolist() == pytest.approx([72, 24], abs=3)


@pytest.mark.parametrize("rule", ["adaptive", "leader-straggler", "linear", "speed"])
def test_every_rule_serves_a_job(rule):
    sizes = play(BatchSizeManager(cuda_job(), rule=rule), 120)
    assert sizes.tolist() == pytest.approx([72, 24], abs=4)


def test_an_unknown_rule_is_refused_by_name():
    with pytest.raises(ConfigError, match="known: auto"):
        BatchSizeManager(cuda_job(), rule="magic")


@pytest.mark.parametrize("rule", ["adaptive", "speed"])
def test_a_reported_bound_holds_at_once_and_is_taken_back(rule):
    manager = BatchSizeManager(cuda_job(), rule=rule)
    assert play(manager, 20)[0] > 66
    assert play(manager, 1, lambda k: 60, start=20, sizes=(72, 24))[0] <= 60
    assert play(manager, 20, lambda k: 60, start=21, sizes=(60, 36))[0] == 60
    assert play(manager, 20, lambda k: 96, start=41, sizes=(60, 36))[0] > 66


def test_a_bound_that_makes_the_batch_impossible_is_named_and_not_applied(caplog):
    manager = BatchSizeManager(cuda_job(most=60))
    with caplog.at_level(logging.WARNING):
        sizes = play(manager, 30, lambda k: 20)
    assert "below the global batch 96" in manager.limits.problem
    assert len(caplog.records) == 1
    assert fits(sizes, manager.job.bounds) is None


def test_bounds_never_go_beyond_the_jobs_own():
    manager = BatchSizeManager(cuda_job(most=60))
    assert play(manager, 30, lambda k: 10_000)[0] == 60


def test_reports_without_a_bound_say_nothing_of_it():
    manager = BatchSizeManager(cuda_job())
    play(manager, 5, lambda k: 60)
    sizes = play(manager, 20, start=5)
    assert sizes[0] <= 60
    step(manager, 40, sizes, [0.1, 0.1])
