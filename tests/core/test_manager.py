"""Rules 1, 6 and 8 of design.md at the manager: every plan fits, is worth its change, and ignores bad reports."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate import Cluster, bounds_of, run

from lbbsp.core.manager import MANY_RANKS, MOST_BEHIND, BatchSizeManager, JobSpec, RejectedReport
from lbbsp.core.sizing import Bounds, fits
from lbbsp.errors import BoundsError, ConfigError

RANKS = 3
BOUNDS = Bounds(96, np.full(RANKS, 8), np.full(RANKS, 64), 4)
SPEEDS = np.array([1000.0, 2000.0, 700.0])


def steady(k):
    return SPEEDS


def step(manager, iteration, sizes, own_s, **fields):
    """All ranks report; the plan."""
    made = None
    for rank in range(len(sizes)):
        made = manager.report(rank, iteration, int(sizes[rank]), float(own_s[rank]), **fields)
    return made


REPORTS = st.fixed_dictionaries(
    {
        "rank": st.integers(-1, RANKS),
        "iteration": st.integers(0, 12),
        "samples": st.integers(-5, 200),
        "own_time_s": st.one_of(st.floats(allow_nan=True), st.floats(1e-5, 10)),
        "draws": st.integers(0, 3),
        "wait_s": st.floats(-1, 5),
        "settled": st.booleans(),
        "sensors": st.lists(st.floats(allow_nan=True), max_size=2).map(tuple),
    }
)


@settings(max_examples=150, deadline=None)
@given(st.lists(REPORTS, max_size=60), st.integers(0, 3), st.sampled_from(["last", "ema", "mean"]))
def test_every_plan_fits_whatever_is_reported(reports, lookahead, predictor):
    manager = BatchSizeManager(JobSpec(BOUNDS, lookahead, sensors=("load",)), predictor)
    versions, based_on = [0], [-1]
    for report in reports:
        try:
            made = manager.report(**report)
        except RejectedReport:
            continue
        if made is not None:
            assert fits(made.sizes, BOUNDS) is None
            versions.append(made.version)
            based_on.append(made.based_on_iteration)
    assert (np.diff(versions) > 0).all()
    assert (np.diff(based_on) > 0).all()
    assert fits(manager.stats().sizes, BOUNDS) is None


BAD = st.fixed_dictionaries(
    {"rank": st.integers(0, RANKS - 1)},
    optional={
        "own_time_s": st.sampled_from([float("nan"), float("inf"), 0.0, -1.0, 1e30, 9e5, 1e-9]),
        "samples": st.sampled_from([-1, 97, 2**40]),
        "iteration": st.sampled_from([-1, "closed", 1002, 2**61]),
        "draws": st.sampled_from([0, -1]),
        "wait_s": st.sampled_from([float("nan"), -1.0, 1e30]),
        "sensors": st.just((1.0, 2.0)),
    },
).filter(lambda fields: len(fields) > 1) | st.fixed_dictionaries({"rank": st.sampled_from([-1, 3, 2**63])})


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_bad_reports_never_move_a_plan(data):
    attacked, twin = (BatchSizeManager(JobSpec(BOUNDS)) for _ in range(2))
    sizes, rng = BOUNDS.equal(), np.random.default_rng(0)
    for iteration in range(12):
        own_s = (4 + sizes) / SPEEDS * np.exp(0.02 * rng.standard_normal(RANKS))
        plans = []
        for manager in (attacked, twin):
            made = None
            for rank in range(RANKS):
                if manager is attacked and iteration > 0:
                    attack(manager, data.draw(st.lists(BAD, max_size=2)), iteration)
                made = manager.report(rank, iteration, int(sizes[rank]), float(own_s[rank]))
            plans.append(made.sizes)
        assert (plans[0] == plans[1]).all()
        sizes = plans[0]
    assert len(set(sizes)) > 1, "the comparison needs plans that move"


def attack(manager, reports, iteration):
    """Far ahead is one rank alone: all ranks there are believed, since reports may have been lost for long."""
    for fields in reports:
        wrong = fields.get("iteration", iteration)
        if wrong in (1002, 2**61) and fields["rank"]:
            continue
        number = iteration - 1 if wrong == "closed" else wrong if wrong != 1002 else iteration + 1002
        values = {"samples": 32, "own_time_s": 0.04} | fields | {"iteration": number}
        with pytest.raises(RejectedReport):
            manager.report(**values)


def test_duplicates_and_late_reports_never_move_a_plan():
    manager = BatchSizeManager(JobSpec(bounds_of(2, 90)))
    twin = BatchSizeManager(JobSpec(bounds_of(2, 90)))
    sizes = np.array([45, 45])
    for iteration in range(10):
        own_s = sizes / np.array([1000.0, 2000.0])
        manager.report(0, iteration, int(sizes[0]), float(own_s[0]))
        for late in (iteration, iteration - 1, 0):
            with pytest.raises(RejectedReport):
                manager.report(0, late, 45, 9.0)
        made = manager.report(1, iteration, int(sizes[1]), float(own_s[1]))
        assert (made.sizes == step(twin, iteration, sizes, own_s).sizes).all()
        sizes = made.sizes


def test_plans_come_after_each_iteration_changed_or_not():
    manager = BatchSizeManager(JobSpec(bounds_of(2, 64)))
    plans = [step(manager, k, [32, 32], [0.032, 0.032]) for k in range(5)]
    assert [plan.version for plan in plans] == [1, 2, 3, 4, 5]
    assert [plan.based_on_iteration for plan in plans] == [0, 1, 2, 3, 4]
    assert not any(plan.changed for plan in plans)


def test_a_plan_changes_only_for_a_gain_above_the_threshold():
    for factor, changes in ((1.03, 0), (1.5, 1)):
        manager = BatchSizeManager(JobSpec(bounds_of(2, 2000)), "last", threshold=0.05)
        for k in range(30):
            made = step(manager, k, [1000, 1000], [1.0, factor])
        assert manager.stats().plan_changes == changes
        assert (made.sizes[0] > 1000) == bool(changes)


def test_reports_that_are_not_settled_say_nothing_of_speed():
    manager = BatchSizeManager(JobSpec(bounds_of(2, 64)))
    for k in range(10):
        made = step(manager, k, [32, 32], [0.03, 0.3], settled=False)
    assert not made.changed
    assert np.isnan(manager.stats().speeds).all()


def test_a_missing_report_leaves_what_is_known_of_the_rank():
    manager = BatchSizeManager(JobSpec(bounds_of(3, 96)))
    for k in range(10):
        step(manager, k, [32] * 3, [0.03, 0.06, 0.03])
    before = manager.stats().sizes
    for k in range(10, 30):
        for rank in (0, 2):
            manager.report(rank, k, int(before[rank]), float(before[rank] / 1000))
    assert abs(int(manager.stats().sizes[1]) - int(before[1])) <= 2
    assert manager.stats().iteration == 28


def test_accumulated_draws_count_each_for_itself():
    one, four = (BatchSizeManager(JobSpec(bounds_of(2, 90))) for _ in range(2))
    for k in range(6):
        single = step(one, k, [45, 45], [0.045, 0.09])
        double = step(four, k, [180, 180], [0.18, 0.36], draws=4)
    assert (single.sizes == double.sizes).all()


def test_observing_keeps_sizes_equal_and_tells_what_would_be_saved():
    result, manager = run(Cluster([0, 0], lambda k: np.array([2000.0, 1000.0])), 120, observe_only=True)
    assert (result.sizes == 64).all()
    stats = manager.stats()
    assert (stats.mode, stats.plan_changes) == ("observe", 0)
    assert stats.saved_share == pytest.approx(1 / 3, abs=0.02)


def test_stats_tell_times_waits_lag_and_errors():
    _, manager = run(Cluster([8, 8], lambda k: np.array([2000.0, 1000.0]), 0.02), 100, lookahead=2)
    stats = manager.stats()
    assert stats.iteration == 99
    assert stats.lag == 3
    assert stats.iteration_time_s == pytest.approx(0.048, rel=0.1)
    assert 0 <= stats.wait_share < 0.08
    assert 1 < stats.forecast_error_percent < 4
    assert stats.predictor == "ema"
    assert stats.mode == "balanced"
    assert stats.stepped_in == 0
    assert stats.speeds[0] / stats.speeds[1] == pytest.approx(2, rel=0.05)


def test_what_is_learnt_follows_the_device_to_the_next_incarnation():
    names = ("fast/cpu", "slow/cpu")
    first = BatchSizeManager(JobSpec(bounds_of(2, 96), identities=names))
    run(Cluster([10, 10], lambda k: np.array([2000.0, 1000.0])), 50, 96, manager=first)
    swapped = BatchSizeManager(JobSpec(bounds_of(3, 96), identities=("new/cpu", *names[::-1])))
    swapped.inherit(first)
    made = step(swapped, 0, [32, 32, 32], [5.0, 5.0, 5.0], settled=False)
    assert made.sizes[2] > 1.5 * made.sizes[1]
    assert swapped._fit.theta_samples[1:] == pytest.approx(first._fit.theta_samples[::-1])


def test_a_rank_without_samples_is_tried_again():
    bounds = Bounds(100, np.zeros(2), np.full(2, 100))

    def speed(k):
        return np.array([1000.0, 1.0 if k < 60 else 1000.0])

    result, _ = run(Cluster([1, 1], speed), 200, 100, manager=BatchSizeManager(JobSpec(bounds)))
    assert (result.sizes[10:50, 1] == 0).all()
    assert result.sizes[-1].tolist() == pytest.approx([50, 50], abs=3)


def test_impossible_jobs_are_refused_by_name():
    with pytest.raises(BoundsError, match="at least 4"):
        BatchSizeManager(JobSpec(bounds_of(4, 3)))
    with pytest.raises(ConfigError, match="threshold"):
        BatchSizeManager(JobSpec(bounds_of(2, 8)), threshold=2.0)
    with pytest.raises(ConfigError, match="known"):
        BatchSizeManager(JobSpec(bounds_of(2, 8)), "oracle")


def test_one_rank_has_the_whole_batch():
    manager = BatchSizeManager(JobSpec(bounds_of(1, 8)))
    assert manager.report(0, 0, 8, 0.1).sizes.tolist() == [8]


def test_bookkeeping_waits_while_sizes_stay_but_never_for_long_and_stats_are_up_to_date() -> None:
    manager = BatchSizeManager(JobSpec(bounds_of(2, 64)))
    waiting = []
    for k in range(100):
        for rank in range(2):
            manager.report(rank, k, 32, 0.1 * (1 + (k < 10) * rank))
        waiting.append(len(manager._behind))
    assert 1 < max(waiting) <= MOST_BEHIND
    assert max(waiting[:3]) == 1
    assert manager.stats().iteration_time_s == pytest.approx(0.1, rel=0.05)
    assert not manager._behind


def test_large_jobs_leave_no_bookkeeping_to_pile_up() -> None:
    ranks = MANY_RANKS + 1
    manager = BatchSizeManager(JobSpec(bounds_of(ranks, ranks)))
    for k in range(30):
        for rank in range(ranks):
            manager.report(rank, k, 1, 0.1)
        assert len(manager._behind) == 1
