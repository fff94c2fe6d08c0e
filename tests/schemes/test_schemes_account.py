"""What each scheme promises about samples, waits and gradients, and that the account always adds up."""

from functools import partial

import numpy as np
import pytest

from bench.schemes.backup import Backup
from bench.schemes.bsp import Bsp
from bench.schemes.deck import Deck
from bench.schemes.dybw import Dybw, Threshold, metropolis, ring_graph
from bench.schemes.registry import SCHEMES
from bench.schemes.speculation import Speculation
from bench.schemes.ssp import Ssp
from lbbsp.errors import ConfigError

SYNCHRONOUS = [name for name in SCHEMES if name in ("bsp", "static", "claims", "speculation") or "lbbsp" in name]


@pytest.mark.parametrize("load", ["steady", "bursts"])
@pytest.mark.parametrize("name", SCHEMES)
def test_started_is_applied_or_wasted_or_in_flight(short, name, load):
    shown = short(SCHEMES[name], load, global_batch=64)
    ledger = shown.world.ledger
    assert ledger.started == ledger.applied + ledger.wasted + ledger.in_flight
    assert 0 <= ledger.in_flight <= 2 * 64
    assert ledger.applied >= 12 * 64
    assert 0 <= shown.waiting_share < 1
    assert np.isfinite(shown.iteration_ms)


@pytest.mark.parametrize("name", SCHEMES)
def test_no_sample_is_applied_twice(short, name):
    numbers = np.concatenate(short(SCHEMES[name], "bursts").world.ledger.numbers)
    assert len(np.unique(numbers)) == len(numbers)


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_a_barrier_applies_each_sample_once_and_whole_batches(short, name):
    shown = short(SCHEMES[name], "bursts")
    numbers = [np.sort(part) for part in shown.world.ledger.numbers]
    assert [len(part) for part in numbers] == [32] * 12
    for iteration, part in enumerate(numbers):
        assert np.array_equal(part, np.arange(32 * iteration, 32 * (iteration + 1)))


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_who_computes_what_changes_nothing_in_the_model(short, name):
    shown, alone = short(SCHEMES[name], "bursts"), short(Bsp, "steady")
    assert np.allclose(shown.world.weights, alone.world.weights, atol=1e-5)


@pytest.mark.parametrize("backups", [0, 1, 3])
def test_backup_workers_waste_exactly_b_shares_an_iteration(short, backups):
    shown = short(partial(Backup, backups=backups), "seconds")
    assert shown.world.ledger.wasted == backups * 8 * shown.iterations
    assert all(len(part) == (4 - backups) * 8 for part in shown.world.ledger.numbers)


def test_without_backups_they_are_bsp(short):
    one, other = short(partial(Backup, backups=0)), short(Bsp)
    assert one.iteration_ms == pytest.approx(other.iteration_ms)
    assert np.allclose(one.world.weights, other.world.weights, atol=1e-5)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_ssp_never_exceeds_its_bound(short, bound, constant):
    shown = short(partial(Ssp, bound=bound), constant(100, 100, 100, 10), iterations=20)
    assert shown.scheme.most_ahead == bound
    assert short(SCHEMES["asp"], constant(100, 100, 100, 10), iterations=20).scheme.most_ahead > 3


def test_ssp_with_bound_0_is_bsp(short, free):
    """Step by step where all arrive at once; the gradients are those of the same parameters."""
    one, other = short(partial(Ssp, bound=0), wire=free), short(Bsp, wire=free)
    assert one.iteration_ms == pytest.approx(other.iteration_ms)
    assert np.allclose(one.world.weights, other.world.weights, atol=1e-5)


def test_speculation_copies_only_what_lags_and_the_first_result_counts(short, constant):
    even = short(Speculation, constant(100, 100, 100, 100))
    assert even.scheme.copies == 0
    assert even.world.ledger.wasted == 0
    slow = short(Speculation, constant(100, 100, 100, 20))
    assert slow.scheme.copies == 12
    assert slow.world.ledger.wasted == 12 * 8
    assert slow.iteration_ms < 0.6 * short(Bsp, constant(100, 100, 100, 20)).iteration_ms


def test_without_slowness_schemes_with_a_barrier_take_the_same_time(short, constant, free):
    even = constant(100, 100, 100, 100)
    expected = short(Bsp, even, wire=free).iteration_ms
    for name in ("static", "lbbsp-ema", "lbbsp-narx", "speculation", "backup-1", "cb-full", "cb-dybw", "ssp-2", "asp"):
        assert short(SCHEMES[name], even, wire=free).iteration_ms == pytest.approx(expected), name


def test_full_consensus_of_all_with_all_is_bsp(short, constant, free):
    """Metropolis weights of a complete graph are 1/n: the mean of the models is the model of the mean."""
    shown = short(partial(Dybw, full=True, reach=3), constant(10, 20, 30, 40), wire=free)
    alone = short(Bsp, constant(10, 20, 30, 40), wire=free)
    assert np.allclose(shown.scheme.models, shown.scheme.models[0], atol=1e-5)
    assert np.allclose(shown.world.weights, alone.world.weights, atol=1e-4)
    assert shown.iteration_ms == pytest.approx(alone.iteration_ms)


@pytest.mark.parametrize("name", ["cb-dybw", "cb-dybw-keep"])
def test_a_round_of_the_threshold_rule_links_all_workers(short, name, constant):
    """Of any workers - 1 iterations in a row after the first ones, each worker takes part in one at least."""
    shown = short(SCHEMES[name], constant(100, 90, 80, 10), iterations=20)
    took_part = np.array(shown.scheme.participants) > 0
    for start in range(len(took_part) - 6):
        assert took_part[start : start + 6].any(axis=0).all()


def test_keeping_late_work_wastes_nothing_and_dropping_it_does(short):
    assert short(SCHEMES["cb-dybw-keep"], "bursts").world.ledger.wasted == 0
    assert short(SCHEMES["cb-dybw"], "bursts").world.ledger.wasted > 0


def test_the_threshold_is_reached_at_the_first_missing_link_of_the_path():
    threshold = Threshold(4)
    assert not threshold.reached({0, 2})
    assert threshold.reached({0, 1})
    threshold.close({0, 1})
    assert not threshold.reached({0, 1})
    assert threshold.reached({0, 1, 2})
    threshold.close({0, 1, 2})
    assert not threshold.reached({0, 1, 2})
    threshold.close({2, 3})
    assert threshold.reached({0, 1})


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_metropolis_weights_are_doubly_stochastic_and_symmetric(workers):
    here = np.arange(workers) % 3 > 0
    linked = ring_graph(workers) & here[:, None] & here[None]
    weights = metropolis(linked)
    assert np.allclose(weights.sum(axis=0), 1)
    assert np.allclose(weights, weights.T)
    assert (weights >= 0).all()
    assert (weights[~here] == np.eye(workers)[~here]).all()


def test_dbw_waits_for_everybody_at_first_and_then_chooses(short):
    waited = short(SCHEMES["dbw"], "steady", iterations=40, workers=8, global_batch=256).scheme.waited_for
    assert waited[:3] == [8, 8, 8]
    assert set(waited) <= set(range(1, 9))
    assert min(waited) < 8


@pytest.mark.parametrize("shards", ["iid", "labels"])
def test_the_deck_deals_every_row_once_an_epoch(shards):
    labels = np.arange(60) % 10
    deck = Deck(labels, 3, shards, seed=1)
    hands = [deck.draw(worker, 20) for worker in range(3)]
    assert sorted(np.concatenate([hand.rows for hand in hands])) == list(range(60))
    assert sorted(np.concatenate([hand.numbers for hand in hands])) == list(range(60))
    if shards == "labels":
        assert all(len(np.unique(labels[hand.rows])) <= 4 for hand in hands)


def test_what_cant_be_is_named(short, constant):
    with pytest.raises(ConfigError, match="4 of 4 workers can't be backups"):
        short(partial(Backup, backups=4))
    with pytest.raises(ConfigError, match="don't divide by 4 workers"):
        short(Dybw, global_batch=33)
    with pytest.raises(ConfigError, match="the load has 3 workers, the job 4"):
        short(Bsp, constant(1, 1, 1))
    with pytest.raises(ConfigError, match="can't share 3 samples"):
        short(Bsp, global_batch=3)
