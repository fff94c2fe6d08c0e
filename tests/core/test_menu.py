"""A menu keeps distinct sizes few: a new one must earn what it costs to compile for it."""

import numpy as np

from lbbsp.core.bounds import Bounds
from lbbsp.core.rules.menu import Menu
from lbbsp.core.sizing import fits

BOUNDS = Bounds(512, np.ones(4), np.full(4, 512))
SLOPES = np.array([0.001, 0.001, 0.002, 0.004])


def play(menu, iterations=200, noise=0.05):
    rng, sizes, seen = np.random.default_rng(0), BOUNDS.equal(), [set() for _ in range(4)]
    for _ in range(iterations):
        for one, size in zip(seen, sizes.tolist(), strict=True):
            one.add(size)
        time_s = (0.02 + SLOPES * sizes) * np.exp(noise * rng.standard_normal(4))
        sizes = menu.propose(sizes.astype(float), time_s, BOUNDS)
        assert fits(sizes, BOUNDS) is None
    return sizes, seen


def test_sizes_are_few_and_coarse_and_near_the_best():
    sizes, seen = play(Menu(4, 512, new_size_s=1.0))
    assert max(len(one) for one in seen) <= 5
    assert (sizes % 8 == 0).all()
    assert (0.02 + SLOPES * sizes).max() < 1.12 * (0.02 + 512 / (1 / SLOPES).sum())


def test_a_size_that_cannot_earn_its_cost_is_not_taken():
    _, seen = play(Menu(4, 512, new_size_s=1e6))
    assert max(len(one) for one in seen) <= 2


def test_a_step_that_the_bounds_exclude_gives_way():
    odd = Bounds(510, np.ones(4), np.full(4, 512), 5)
    sizes = Menu(4, 510).propose(np.full(4, 127.5), np.full(4, 0.1), odd)
    assert fits(sizes, odd) is None
