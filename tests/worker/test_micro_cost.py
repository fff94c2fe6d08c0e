"""What a micro-batch costs beside its samples is found from iterations with several sizes, also where speeds jump."""

import numpy as np

from lbbsp.worker.micro import LEAST_KNOWN, MicroCost

FIXED_S, SAMPLE_S = 0.002, 0.001


def iterate(cost: MicroCost, sizes: list[int], speeds: list[float]) -> None:
    for samples, speed in zip(sizes, speeds, strict=True):
        cost.worked(samples, (FIXED_S + SAMPLE_S * samples) / speed)
    cost.end()


def test_the_cost_is_found_once_enough_iterations_told_it() -> None:
    cost = MicroCost()
    for count in range(LEAST_KNOWN):
        assert (cost.fixed_s == 0.0) == (count < LEAST_KNOWN)
        iterate(cost, [100, 20, 10], [1.0] * 3)
    assert abs(cost.fixed_s - FIXED_S) < 1e-9
    assert abs(cost.sample_s - (SAMPLE_S + FIXED_S / 10)) < 1e-9


def test_one_size_says_nothing() -> None:
    cost = MicroCost()
    for _ in range(20):
        iterate(cost, [100], [1.0])
        iterate(cost, [30, 30, 20], [1.0] * 3)
    assert cost.fixed_s == 0.0


def test_bursts_move_it_little() -> None:
    cost, rng = MicroCost(), np.random.default_rng(0)
    for _ in range(60):
        iterate(cost, [100, 20, 10, 10], rng.choice([1.0, 0.5], 4, p=[0.8, 0.2]).tolist())
    assert 0.0 < cost.fixed_s < 3 * FIXED_S
