"""What ranks settle: alike everywhere or an error that names the rank, what it brought and what would work."""

from typing import Any

import pytest

from lbbsp.errors import BoundsError, ConfigError, UnsupportedError
from lbbsp.worker.terms import Offer, hello, settle


def offer(**brought: Any) -> Offer:
    return Offer(**{"batch_samples": 8, "dataset_samples": 100, "job": "j", "incarnation": "i"} | brought)


def test_the_global_batch_is_the_sum_of_the_batches_unless_named() -> None:
    offers = [offer(), offer(batch_samples=4)]
    assert settle(offers).bounds.global_batch == 12
    named = [offer(global_batch=30), offer(batch_samples=4, global_batch=30)]
    assert settle(named).bounds.global_batch == 30


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("global_batch", (16, 32)),
        ("granularity", (1, 2)),
        ("dataset_samples", (100, 101)),
        ("mode", ("balance", "observe")),
        ("manager", (None, "tcp://there:1")),
    ],
)
def test_what_must_be_alike_is_named_with_rank_and_values(name: str, values: tuple[Any, Any]) -> None:
    offers = [offer(**{name: values[0]}), offer(**{name: values[0]}), offer(**{name: values[1]})]
    with pytest.raises(ConfigError, match=f"rank 2 has {name} {values[1]!r}, rank 0 has {values[0]!r}"):
        settle(offers)


def test_job_incarnation_and_seed_are_rank_0s() -> None:
    terms = settle([offer(seed=1), offer(job="other", incarnation="another", seed=2)])
    assert (terms.job, terms.incarnation, terms.seed) == ("j", "i", 1)


def test_one_ranks_problem_is_everybodys_error() -> None:
    with pytest.raises(UnsupportedError, match="rank 1: FSDP can't be served"):
        settle([offer(), offer(problem="FSDP can't be served")])


def test_impossible_bounds_are_an_error_at_the_start() -> None:
    with pytest.raises(BoundsError, match=r"maxima.*below the global batch 16"):
        settle([offer(max_samples=3), offer(max_samples=5)])
    with pytest.raises(BoundsError, match=r"minima.*above the global batch 16"):
        settle([offer(min_samples=9), offer(min_samples=9)])


def test_a_maximum_is_the_ranks_own_and_never_above_the_global_batch() -> None:
    terms = settle([offer(max_samples=1000), offer(max_samples=9), offer()])
    assert terms.bounds.max_samples.tolist() == [24, 9, 24]


def test_a_global_batch_of_nothing_is_refused() -> None:
    with pytest.raises(BoundsError, match="global batch"):
        settle([offer(global_batch=0), offer(global_batch=0)])


def test_a_maximum_of_nothing_is_kept() -> None:
    assert settle([offer(min_samples=0, max_samples=0), offer()]).bounds.max_samples.tolist() == [0, 16]


@pytest.mark.parametrize(
    ("able", "chunks"),
    [((True, True), True), ((True, None), True), ((None, None), False), ((True, False), False), ((None, False), False)],
)
def test_chunks_are_decided_once_for_all(able: tuple[bool | None, ...], chunks: bool) -> None:
    """None has no loader workers, and does as the others do."""
    offers = [offer(chunks=one, lookahead=3 + i, chunk_depth=5 - i) for i, one in enumerate(able)]
    terms = settle(offers)
    assert terms.chunks is chunks
    assert (terms.lookahead, terms.chunk_depth) == ((0, 5) if chunks else (4, 0))


@pytest.mark.parametrize(("drop", "draws"), [((False, False), 7), ((False, True), 6), ((True, True), 6)])
def test_the_short_last_iteration_is_dropped_on_all_ranks_or_none(drop: tuple[bool, bool], draws: int) -> None:
    assert settle([offer(drop_last=one) for one in drop]).draws == draws


def test_data_without_a_length_has_no_number_of_draws() -> None:
    assert settle([offer(dataset_samples=None)] * 2).draws is None


def test_each_rank_says_hello_with_its_own_bounds_and_the_jobs_terms() -> None:
    offers = [offer(lookahead=2), offer(min_samples=3, max_samples=9, machine="m", device="d")]
    terms = settle(offers)
    said = hello(terms, offers[1], 1, ("load",))
    assert (said.rank, said.world_size, said.global_batch, said.lookahead) == (1, 2, 16, 2)
    assert (said.min_samples, said.max_samples, said.machine, said.device) == (3, 9, "m", "d")
    assert said.sensors == ("load",)


def test_a_resume_is_another_incarnation() -> None:
    terms = settle([offer(), offer()])
    said = [hello(terms, offer(), 0, (), loads).incarnation for loads in range(3)]
    assert said == ["i", "i.1", "i.2"]
