"""Where ranks send several reports at once, each iteration still closes once, with all of them, in whatever order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbbsp.core.reports import Inbox

AT_ONCE = 8


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
