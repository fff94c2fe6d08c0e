"""Epochs without frameworks: saved by what was consumed, resumed in another world; a job that is not balanced."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest

from lbbsp.errors import BoundsError, ConfigError
from lbbsp.worker.epochs import Epochs, Permuted
from lbbsp.worker.still import alone
from lbbsp.worker.terms import Offer, settle

SAMPLES, BATCH = 50, 12


def job(world_size, rank, seed=1, shuffle=True, samples=SAMPLES):
    offer = Offer(batch_samples=0, dataset_samples=samples, job="j", incarnation="i", seed=seed, global_batch=BATCH)
    terms = settle([offer] * world_size)
    session = alone(terms, offer, rank)
    return Epochs(Permuted(samples, shuffle), session.follower, terms, session.resume), session.follower


def draws(epochs, follower, most=1000):
    """Indices of each draw of an epoch."""
    cursor = epochs.begin()
    while not cursor.finished and most > 0:
        most -= 1
        follower.draw(cursor)
        cursor.next_part()
        yield cursor.indices(follower.drawn(cursor, 0.0)).tolist()
        follower.reduction()
        follower.reduced()
    if cursor.finished:
        follower.finish()
        epochs.ended(cursor)


@pytest.mark.parametrize("worlds", [(1, 1), (2, 2), (3, 2), (2, 5)])
def test_resumes_in_another_world_take_each_sample_once(worlds):
    jobs = [job(worlds[0], rank) for rank in range(worlds[0])]
    taken = [index for one in jobs for part in draws(*one, most=2) for index in part]
    states = [epochs.state() for epochs, _ in jobs]
    assert all(state == states[0] for state in states)
    more = [job(worlds[1], rank, seed=99) for rank in range(worlds[1])]
    for epochs, _ in more:
        epochs.load(states[0])
    taken += [index for one in more for part in draws(*one) for index in part]
    assert Counter(taken) == Counter(range(SAMPLES))
    following = [index for one in more for part in draws(*one) for index in part]
    assert Counter(following) == Counter(range(SAMPLES))


def test_orders_differ_between_epochs_and_peeks_do_not_move_them():
    epochs, follower = job(1, 0)
    next(draws(epochs, follower), None)
    epochs, follower = job(1, 0)
    peek = epochs.begin().epoch.order
    first = [index for part in draws(epochs, follower) for index in part]
    second = [index for part in draws(epochs, follower) for index in part]
    assert first == peek.tolist()
    assert first != second
    plain, follower = job(1, 0, shuffle=False)
    assert [index for part in draws(plain, follower) for index in part] == list(range(SAMPLES))


@pytest.mark.parametrize("seen", [False, True])
def test_a_state_saved_at_the_last_draw_neither_repeats_nor_skips_an_epoch(seen):
    """Whether or not the loop has seen the end: where not, the first epoch after the resume is that end, empty."""
    epochs, follower = job(1, 0)
    drawing = draws(epochs, follower)
    taken = [index for part in (drawing if seen else islice(drawing, epochs.draws)) for index in part]
    assert Counter(taken) == Counter(range(SAMPLES))
    if not seen:
        follower.reduction()
        follower.reduced()
    resumed = job(1, 0, seed=5)
    resumed[0].load(epochs.state())
    if not seen:
        assert list(draws(*resumed)) == []
    whole = [index for part in draws(*resumed) for index in part]
    assert Counter(whole) == Counter(range(SAMPLES))
    assert whole != taken


def test_a_state_of_other_data_or_a_batch_that_does_not_fit():
    epochs, _ = job(2, 0)
    state = epochs.state()
    with pytest.raises(ConfigError, match="49 samples"):
        epochs.load(state | {"dataset_samples": 49})
    with pytest.raises(ConfigError, match="version 2"):
        epochs.load(state | {"version": 2})
    with pytest.raises(BoundsError):
        epochs.load(state | {"global_batch": 1})
    assert np.array_equal(epochs.terms.bounds.equal(), [6, 6])
