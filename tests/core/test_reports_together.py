"""Where ranks send several reports at once, each iteration still closes once, with all of them, in whatever order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbbsp.core.reports import FOLLOWS, Inbox, RejectedReport
from lbbsp.protocol import MOST_TOGETHER

AT_ONCE = MOST_TOGETHER


def add(inbox: Inbox, rank: int, iteration: int, together: int = AT_ONCE) -> list:
    return inbox.add(rank, iteration, 8, 0.1, 1, 0.0, True, (), 0.0, together)


def settled(ranks: int) -> Inbox:
    inbox = Inbox(ranks, 8 * ranks)
    for rank in range(ranks):
        add(inbox, rank, 0)
    return inbox


@given(st.integers(2, 5), st.integers(2, AT_ONCE), st.randoms(use_true_random=False))
def test_groups_of_reports_close_each_iteration_whole_however_they_interleave(ranks, together, random) -> None:
    inbox, closed = settled(ranks), []
    for group in range(4):
        first = 1 + group * together
        queues = [list(range(first, first + together)) for _ in range(ranks)]
        while any(queues):
            rank = random.choice([rank for rank, queue in enumerate(queues) if queue])
            closed += add(inbox, rank, queues[rank].pop(0), together)
    assert [one.iteration for one in closed] == list(range(1, 4 * together + 1))
    assert all(one.count == ranks for one in closed)


def test_a_rank_that_sends_one_by_one_loses_nothing_of_those_that_send_together() -> None:
    inbox, closed = settled(3), []
    for rank in (0, 1, 2):
        closed += add(inbox, rank, 1)
    for iteration in range(2, 8):
        closed += add(inbox, 2, iteration, together=1)
    for rank in (0, 1):
        for iteration in range(2, 8):
            closed += add(inbox, rank, iteration)
    assert [one.iteration for one in closed] == list(range(1, 8))
    assert all(one.count == 3 for one in closed)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_iterations_go_on_closing_where_a_rank_is_heard_no_more(ranks: int) -> None:
    inbox, closed = settled(ranks), []
    for iteration in range(1, 100):
        for rank in range(1, ranks):
            closed += add(inbox, rank, iteration)
    assert [one.iteration for one in closed] == list(range(1, 100 - AT_ONCE))
    assert all(one.count == ranks - 1 for one in closed)


def test_who_sends_one_by_one_again_is_waited_for_no_longer() -> None:
    inbox = settled(2)
    for rank in (0, 1):
        add(inbox, rank, 1, together=1)
    add(inbox, 1, 2, together=1)
    assert [one.iteration for one in add(inbox, 1, 3, together=1)] == [2]


def merged(inbox: Inbox, rank: int, last: int, iterations: int, time_s: float = 0.1) -> list:
    return inbox.add(rank, last, 8, time_s, 1, 0.0, True, (), 0.0, AT_ONCE, iterations)


@given(st.integers(2, 5), st.randoms(use_true_random=False))
def test_groups_told_of_in_one_report_close_once_each_with_all_ranks(ranks, random) -> None:
    inbox, closed, last = settled(ranks), [], 0
    for _ in range(6):
        iterations = random.randint(1, AT_ONCE)
        last += iterations
        order = list(range(ranks))
        random.shuffle(order)
        for rank in order:
            closed += merged(inbox, rank, last, iterations)
        assert (closed[-1].iteration, closed[-1].count, closed[-1].iterations) == (last, ranks, iterations)
    assert len(closed) == 6


@given(st.integers(2, 4), st.randoms(use_true_random=False))
def test_groups_that_end_at_different_iterations_go_on_closing_and_nobody_counts_twice(ranks, random) -> None:
    inbox, closed, said = settled(ranks), [], [0] * ranks
    for _ in range(60 * ranks):
        rank = min(range(ranks), key=lambda each: (said[each], random.random()))
        iterations = random.randint(1, AT_ONCE)
        said[rank] += iterations
        closed += merged(inbox, rank, said[rank], iterations)
    numbers = [one.iteration for one in closed]
    assert numbers == sorted(set(numbers))
    assert all(one.count == sum(one.heard) <= ranks for one in closed)
    assert inbox.closed is not None
    assert inbox.closed > min(said) - 3 * AT_ONCE
    whole = [one for one in closed if one.count == ranks]
    assert len(whole) >= 5


def test_a_report_of_several_stands_for_each_that_others_reported_alone() -> None:
    inbox, closed = settled(3), []
    for iteration in range(1, 7):
        closed += merged(inbox, 2, iteration, 1, time_s=0.1 * iteration)
    closed += merged(inbox, 0, 6, 6)
    closed += merged(inbox, 1, 6, 6)
    assert [one.iteration for one in closed] == list(range(1, 7))
    assert all(one.count == 3 for one in closed)
    assert [one.time_s[2] for one in closed] == pytest.approx([0.1 * k for k in range(1, 7)])


@pytest.mark.parametrize(("last", "iterations"), [(1, 8), (3, AT_ONCE), (0, 8)])
def test_a_report_of_more_iterations_than_there_were_changes_no_closed_one(last: int, iterations: int) -> None:
    inbox = settled(2)
    if last == 0:
        with pytest.raises(RejectedReport):
            merged(inbox, 0, last, iterations)
        return
    assert merged(inbox, 0, last, iterations) == []
    assert [one.iteration for one in merged(inbox, 1, last, iterations)] == [last]


@given(st.integers(2, 5), st.integers(0, 7), st.randoms(use_true_random=False))
def test_each_iteration_weighs_once_where_the_groups_of_ranks_overlap(ranks, offset, random) -> None:
    inbox, closed, said = settled(ranks), [], [0] * ranks
    for rank in range(0, ranks, 2):
        said[rank] = offset
        closed += merged(inbox, rank, offset, offset) if offset else []
    for _ in range(20):
        for rank in random.sample(range(ranks), ranks):
            said[rank] += AT_ONCE
            closed += merged(inbox, rank, said[rank], AT_ONCE)
    assert sum(one.iterations for one in closed) <= inbox.closed
    assert all(one.iterations >= 1 for one in closed)


def test_one_report_of_many_that_closes_what_another_rank_reported_singly_weighs_each_once() -> None:
    inbox, closed = settled(2), []
    for iteration in range(1, 9):
        closed += merged(inbox, 1, iteration, 1)
    closed += merged(inbox, 0, 8, 8)
    assert [one.iterations for one in closed] == [1] * 8


@pytest.mark.parametrize("after", [1, 3, 8, AT_ONCE // 2 + 1, AT_ONCE])
def test_of_two_ranks_the_one_still_heard_goes_on_closing_iterations_however_many_it_tells_of_at_once(after) -> None:
    inbox, closed = settled(2), []
    for rank in (0, 1):
        closed += merged(inbox, rank, AT_ONCE, AT_ONCE)
    last = AT_ONCE
    while last < 2500:
        last += after
        closed += inbox.add(0, last, 8, 0.1, 1, 0.0, True, (), 0.0, after, after)
    assert inbox.closed is not None
    assert inbox.closed > last - 4 * AT_ONCE


def test_reports_of_the_most_at_once_are_near_enough_to_prove_what_is_lost() -> None:
    assert FOLLOWS >= 3 * MOST_TOGETHER


@given(st.sampled_from([2, 4]), st.lists(st.integers(1, AT_ONCE), min_size=40, max_size=80))
def test_where_half_of_the_ranks_are_heard_no_more_the_others_close_iterations_however_groups_grow(ranks, groups):
    inbox, last = settled(ranks), 0
    for count in groups:
        last += count
        for rank in range(ranks // 2):
            inbox.add(rank, last, 8, 0.1, 1, 0.0, True, (), 0.0, count, count)
    assert inbox.closed is not None
    assert inbox.closed >= last - 3 * AT_ONCE
