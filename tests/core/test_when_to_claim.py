"""Claims begin where plans lose to what they can't foresee, end where they don't, and plan what is safe."""

import numpy as np
import pytest

from lbbsp.core.bounds import Bounds
from lbbsp.core.claims import LEAST_BETA, WINDOW, Claiming
from lbbsp.core.manager import BatchSizeManager, JobSpec
from lbbsp.errors import ConfigError

RANKS, BATCH = 2, 256


def follow(
    claiming: Claiming, speeds: np.ndarray, sizes: list[int], theta: float = 0.0, uncovered_s: float = 0.0
) -> None:
    """One iteration in which each rank worked what claims gave it."""
    real = speeds * (BATCH + RANKS * theta) / speeds.sum() - theta
    samples = np.floor(real)
    samples[0] += BATCH - samples.sum()
    thetas = np.full(RANKS, theta)
    claims = claiming.cut.beta < 1.0
    wait_s = np.full(RANKS, 0.001 + claims * uncovered_s)
    claiming.follow(np.array(sizes), samples, (thetas + samples) / speeds, thetas, wait_s, claims)


def run(claiming: Claiming, spread: float, iterations: int, **options: float) -> Claiming:
    rng = np.random.default_rng(3)
    for _ in range(iterations):
        follow(claiming, 1000 * np.exp(spread * rng.standard_normal(RANKS)), [128, 128], **options)
    return claiming


def test_steady_ranks_claim_nothing() -> None:
    claiming = run(Claiming("on", RANKS, BATCH), 0.005, 100)
    assert claiming.cut.beta == 1.0
    assert "all is planned" in claiming.why


def test_bursts_are_claimed_and_what_is_planned_is_safe() -> None:
    claiming = run(Claiming("on", RANKS, BATCH), 0.4, 100)
    assert LEAST_BETA <= claiming.cut.beta < 0.8
    assert 1 <= claiming.cut.chunk <= BATCH // RANKS // 4


def test_claims_end_when_ranks_are_steady_again() -> None:
    claiming = run(Claiming("on", RANKS, BATCH), 0.4, 50)
    assert claiming.cut.beta < 1.0
    assert run(claiming, 0.005, 3 * WINDOW).cut.beta == 1.0


def test_the_start_says_nothing() -> None:
    claiming = Claiming("on", RANKS, BATCH)
    for _ in range(12):
        follow(claiming, np.array([2000.0, 1000.0]), [128, 128])
    for _ in range(40):
        follow(claiming, np.array([2000.0, 1000.0]), [171, 85])
    assert claiming.cut.beta == 1.0


def test_auto_weighs_the_fixed_cost_of_micro_batches() -> None:
    cheap, dear = (run(Claiming("auto", RANKS, BATCH), 0.1, 100, theta=theta) for theta in (0.1, 60.0))
    assert cheap.cut.beta < 1.0
    assert dear.cut.beta == 1.0
    assert "fixed cost" in dear.why


def test_auto_weighs_communication_that_no_longer_overlaps() -> None:
    claiming = run(Claiming("auto", RANKS, BATCH), 0.1, 50)
    assert claiming.cut.beta < 1.0
    assert run(claiming, 0.1, 60, uncovered_s=0.03).cut.beta == 1.0
    assert "no longer overlaps" in claiming.why


def test_claims_end_where_they_make_all_ranks_slower_than_they_save() -> None:
    """As where a thousand ranks wait for one counter."""
    for slower, wanted in ((1.0, True), (0.7, False)):
        claiming, rng = Claiming("on", RANKS, BATCH), np.random.default_rng(3)
        for _ in range(150):
            speeds = 1000 * np.exp(0.1 * rng.standard_normal(RANKS))
            follow(claiming, speeds * (slower if claiming.cut.beta < 1 else 1.0), [128, 128])
        assert (claiming.cut.beta < 1.0) == wanted, claiming.why


def changing(claiming: Claiming, slower: float, fixed_s: float, iterations: int) -> int:
    """Ranks whose speeds vary, and become slower as claims begin for another reason; iterations that claimed."""
    rng, claimed = np.random.default_rng(3), 0
    for _ in range(iterations):
        for rank in range(RANKS):
            claiming.say(rank, 0, fixed_s)
        speeds = 1000 * np.exp(0.2 * rng.standard_normal(RANKS))
        begun = claimed > 0 or claiming.cut.beta < 1
        follow(claiming, speeds * (slower if begun else 1.0), [128, 128])
        claimed += claiming.cut.beta < 1
    return claimed


def test_a_neighbour_that_comes_as_claims_begin_is_not_taken_for_their_cost_where_ranks_measure_it() -> None:
    assert changing(Claiming("on", RANKS, BATCH), 0.7, 0.0005, 200) > 160


def test_where_nobody_measures_claims_are_tried_again() -> None:
    claiming = Claiming("on", RANKS, BATCH)
    assert changing(claiming, 0.5, 0.0, 100) < 60
    assert changing(claiming, 1.0, 0.0, 300) > 20


def test_a_measured_cost_ends_claims() -> None:
    cheap, dear = Claiming("on", RANKS, BATCH), Claiming("on", RANKS, BATCH)
    assert changing(cheap, 1.0, 0.0005, 120) > 90
    assert changing(dear, 1.0, 0.05, 120) == 0


def test_unknown_reports_and_short_iterations_teach_nothing() -> None:
    claiming = run(Claiming("on", RANKS, BATCH), 0.005, 60)
    nan = np.array([np.nan, 100.0])
    for _ in range(50):
        claiming.follow(np.array([128, 128]), nan, nan, np.zeros(2), np.zeros(2), False)
        claiming.follow(np.array([128, 128]), np.array([10.0, 90.0]), np.ones(2), np.zeros(2), np.zeros(2), False)
    assert claiming.cut.beta == 1.0


def test_an_unknown_mode_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'maybe' is unknown; known: off, on, auto"):
        Claiming("maybe", 2, 10)


def manage(claims: str, spread: float, iterations: int = 120, observe: bool = False) -> BatchSizeManager:
    """A job whose ranks claim as the manager says."""
    bounds = Bounds(BATCH, np.ones(RANKS, dtype=np.int64), np.full(RANKS, BATCH))
    manager = BatchSizeManager(JobSpec(bounds, claims=claims), "last", observe_only=observe)
    rng, sizes, beta = np.random.default_rng(5), bounds.equal(), 1.0
    for iteration in range(iterations):
        speeds = np.array([2000.0, 1000.0]) * np.exp(spread * rng.standard_normal(RANKS))
        samples = np.round(BATCH * speeds / speeds.sum()).astype(int) if beta < 1 else sizes
        samples = np.array([samples[0], BATCH - samples[0]])
        claimed = np.maximum(0, samples - (beta * sizes).astype(int)) if beta < 1 else np.zeros(RANKS, dtype=int)
        for rank in range(RANKS):
            made = manager.report(
                rank, iteration, int(samples[rank]), samples[rank] / speeds[rank], claimed=int(claimed[rank])
            )
        assert made is not None
        assert made.sizes.sum() == BATCH
        sizes, beta = made.sizes, made.beta
    return manager


def test_the_manager_leaves_steady_jobs_alone_and_cuts_others() -> None:
    assert manage("on", 0.005).claiming.cut.beta == 1.0
    assert manage("on", 0.4).claiming.cut.beta < 1.0
    assert manage("off", 0.4).claiming.cut.beta == 1.0
    assert manage("on", 0.4, observe=True).claiming.cut.beta == 1.0


def test_sizes_that_claims_made_teach_the_curves_nothing() -> None:
    """All ranks end together whatever they worked: a fit would take that for a fixed cost."""
    manager = manage("on", 0.4)
    manager.catch_up()
    assert (manager._fit.theta_samples < 0.35 * BATCH / RANKS).all()
