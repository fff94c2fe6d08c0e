"""Whether what real ranks say they did adds up, and leads to the very models that they have.

Knows nothing of processes: it takes accounts, as rank.Account writes them.
"""

from typing import Any

import numpy as np

from bench.schemes.data import load
from bench.schemes.deck import Deck, joined
from bench.schemes.dybw import metropolis, ring_graph
from bench.schemes.model import Floats, Model
from bench.schemes.world import Setup

TOLERANCE = 1e-3
"""In a parameter, float32, over all iterations."""


def check(scheme: str, accounts: list[dict[str, Any]], setup: Setup) -> None:
    """Raises RuntimeError where samples are missing or counted twice, or a model isn't what follows."""
    started = sum(account["started"] for account in accounts)
    applied = [number for account in accounts for numbers in account["applied"] for number in numbers]
    wasted = sum(account["wasted"] for account in accounts)
    _wanted(started == len(applied) + wasted, f"{started} samples started, {len(applied)} applied, {wasted} wasted")
    _wanted(len(set(applied)) == len(applied), "a sample was applied twice")
    if scheme == "speculation":
        _wanted(len(applied) == setup.iterations * setup.global_batch, f"{len(applied)} samples applied, not all")
        models = _reduced(setup)
    else:
        members = accounts[0]["members"]
        _wanted(all(account["members"] == members for account in accounts), "ranks disagree on who took part")
        models = _mixed(setup, members)
    found = np.array([account["weights"] for account in accounts])
    off = float(np.abs(found - models).max())
    _wanted(off < TOLERANCE, f"models differ by {off:.2g} from those that follow from who took part")


def _wanted(right: bool, problem: str) -> None:
    if not right:
        raise RuntimeError(problem)


def _mixed(setup: Setup, members: list[list[int]]) -> Floats:
    """All models after consensus with these members."""
    samples = load()
    model = Model(samples.train_x.shape[1], samples.classes)
    deck = Deck(samples.train_y, setup.workers, setup.shards, setup.seed)
    models = np.tile(model.start(setup.seed), (setup.workers, 1))
    for iteration, here in enumerate(members):
        shares = [deck.draw(worker, size) for worker, size in enumerate(setup.shares())]
        rows = np.stack([shares[worker].rows for worker in here])
        _, gradients = model.gradients(models[here], samples.train_x[rows], samples.train_y[rows])
        models[here] -= np.float32(setup.rate * setup.decay**iteration) * gradients
        mask = np.isin(np.arange(setup.workers), here)
        models = (metropolis(ring_graph(setup.workers) & mask[:, None] & mask[None]) @ models).astype(np.float32)
    return models


def _reduced(setup: Setup) -> Floats:
    """The one model after whole batches."""
    samples = load()
    model = Model(samples.train_x.shape[1], samples.classes)
    deck = Deck(samples.train_y, setup.workers, setup.shards, setup.seed)
    weights = model.start(setup.seed)
    for iteration in range(setup.iterations):
        rows = joined([deck.draw(worker, size) for worker, size in enumerate(setup.shares())]).rows
        _, gradient = model.gradient(weights, samples.train_x[rows], samples.train_y[rows])
        weights = weights - np.float32(setup.rate * setup.decay**iteration) * gradient
    return weights
