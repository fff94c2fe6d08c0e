"""Every rule keeps rule 1 whatever it sees; `adaptive` meets its goals on the recorded curves of unlike cards."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbbsp.core.accelerator import AcceleratorFit
from lbbsp.core.bounds import Bounds
from lbbsp.core.manager import BatchSizeManager, JobSpec
from lbbsp.core.rules import RULES, Adaptive, LeaderStraggler, make
from lbbsp.core.rules.base import within
from lbbsp.core.sizing import Curves, allocate, fits
from lbbsp.errors import ConfigError

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "bench"))
import devices
import gpu_rule

TIMES = st.lists(st.floats(1e-4, 1e3) | st.just(float("nan")), min_size=3, max_size=3)


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(TIMES, st.integers(16, 64), st.sampled_from([1, 4])), min_size=1, max_size=12))
def test_every_plan_fits_its_bounds_whatever_is_seen(name, rounds):
    rule, sizes = make(name, 3, 96), np.array([32, 32, 32])
    for times, most, unit in rounds:
        bounds = Bounds(96, np.array([0, 4, 8]), np.array([96, most, 64]), unit)
        sizes = rule.propose(sizes.astype(float), np.array(times), bounds)
        assert fits(sizes, bounds) is None


@pytest.mark.parametrize("name", RULES)
def test_two_plans_from_the_same_reports_agree(name):
    plans = []
    for rule in (make(name, 4, 512), make(name, 4, 512)):
        result = gpu_rule.play(devices.cards("vit", 3), rule, 30)
        plans.append(result["over"])
    assert (plans[0] == plans[1]).all()


@pytest.mark.parametrize("name", RULES)
def test_a_rank_that_never_reports_stops_nothing(name):
    rule, bounds = make(name, 2, 64), Bounds(64, np.ones(2), np.full(2, 64))
    for _ in range(10):
        sizes = rule.propose(np.array([32.0, np.nan]), np.array([0.1, np.nan]), bounds)
        assert fits(sizes, bounds) is None


@pytest.mark.parametrize("name", RULES)
def test_a_report_of_many_iterations_moves_a_rule_as_far_as_these_one_by_one(name):
    bounds = Bounds(96, np.zeros(3), np.full(3, 96))
    sizes = []
    for group in (1, 16):
        manager = BatchSizeManager(JobSpec(bounds), rule=name)
        for last in range(group, 113, group):
            now = manager.stats().sizes
            for rank, speed in enumerate((100.0, 100.0, 60.0)):
                manager.report(rank, last, int(now[rank]), now[rank] / speed, iterations=group, together=group)
            manager.catch_up()
        sizes.append(manager.stats().sizes)
    assert np.abs(sizes[0] - sizes[1]).max() <= 3


def test_unknown_rules_are_refused_by_name():
    with pytest.raises(ConfigError, match="adaptive, leader-straggler, linear"):
        make("magic", 2, 64)


@pytest.mark.parametrize("model", devices.RECORDED)
def test_adaptive_is_near_the_optimum_in_six_iterations_and_holds_it(model):
    over = [gpu_rule.play(devices.cards(model, seed), Adaptive(4, 512), 60)["over"] for seed in range(7)]
    assert np.median([gpu_rule.reached(one) for one in over]) <= 7
    assert np.median([one[30:].mean() for one in over]) < 1.012


def test_no_card_runs_out_of_memory_twice_and_rules_never_exceed_the_model():
    for seed in range(5):
        for rule in (Adaptive(4, 512), LeaderStraggler(4, 512, 32, 5)):
            assert gpu_rule.play(devices.cards("resnet18", seed), rule, 60)["crossed"].max() <= 1


def test_a_neighbour_is_answered_at_once_and_its_leaving_too():
    cluster = devices.cards("resnet18", 5, 0.02, devices.neighbour(0, 30, 30))
    over = gpu_rule.play(cluster, Adaptive(4, 512), 90)["over"]
    assert over[32:60].mean() < 1.04
    assert over[62:].mean() < 1.04


def test_the_fit_tells_flat_from_straight():
    truth = Curves(np.array([0.05, 0.0]), np.array([0.01, 0.02]), np.array([0.0005, 0.001]))
    fit, rng = AcceleratorFit(2, 64), np.random.default_rng(0)
    for _ in range(60):
        samples = rng.integers(8, 160, 2).astype(float)
        fit.learn(samples, truth.time_s(samples) * np.exp(0.02 * rng.standard_normal(2)))
    for size in (16.0, 64.0, 128.0):
        assert fit.curves().time_s(np.full(2, size)) == pytest.approx(truth.time_s(np.full(2, size)), rel=0.06)


def test_one_more_time_teaches_most_where_fewest_are_known():
    fit = AcceleratorFit(2, 64)
    for _ in range(10):
        fit.learn(np.array([64.0, np.nan]), np.array([0.1, np.nan]))
    fit.learn(np.array([64.0, 64.0]), np.array([0.1, 0.2]))
    unsure = fit.uncertainty(np.array([64.0, 64.0]))
    assert unsure[1] > 2 * unsure[0]
    assert fit.uncertainty(np.array([16.0, 64.0]))[0] > unsure[0]


def test_single_bursts_leave_what_is_known():
    fit = AcceleratorFit(1, 64)
    for k in range(60):
        fit.learn(np.array([64.0]), np.array([0.1 * (5.0 if k == 40 else 1.0)]))
    assert fit.curves().time_s(np.array([64])) == pytest.approx([0.1], rel=0.02)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_sizes_are_allocated_over_fitted_curves_exactly(draws, total):
    fit, ranks = AcceleratorFit(len(draws), 32), len(draws)
    fit.learn(np.full(ranks, 32.0), 0.01 + np.array(draws))
    curves, bounds = fit.curves(), Bounds(total, np.zeros(ranks), np.full(ranks, total))
    worst = curves.time_s(allocate(curves, bounds)).max()
    assert curves.time_s(within(np.full(ranks, total // ranks), bounds)).max() >= worst * (1 - 1e-9)
