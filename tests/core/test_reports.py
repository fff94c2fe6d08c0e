"""Rule 8 of design.md at the inbox: what is rejected, by which name, and when an iteration closes."""

import pytest

from lbbsp.core.reports import ABSURD_IN_A_ROW, FAR_AHEAD, FOLLOWS, MOST_OPEN, Inbox, RejectedReport, Rejection


def add(inbox, rank, iteration, samples=8, own_time_s=0.1, draws=1, wait_s=0.0, settled=True, sensors=()):
    return [
        closed.iteration for closed in inbox.add(rank, iteration, samples, own_time_s, draws, wait_s, settled, sensors)
    ]


def rejected(inbox, *values, **fields):
    with pytest.raises(RejectedReport) as caught:
        add(inbox, *values, **fields)
    return caught.value.kind


@pytest.fixture
def inbox():
    return Inbox(ranks=3, global_batch=24)


def test_an_iteration_closes_with_its_last_report(inbox):
    assert [add(inbox, rank, 0) for rank in (2, 0, 1)] == [[], [], [0]]
    assert inbox.closed == 0


def test_a_report_of_the_next_iteration_closes_one_that_misses_a_report(inbox):
    for rank in range(3):
        add(inbox, rank, 0)
    add(inbox, 0, 1)
    add(inbox, 1, 1)
    assert add(inbox, 0, 2) == [1]
    assert rejected(inbox, 2, 1) is Rejection.STALE


def test_one_rank_far_ahead_closes_nothing_until_most_ranks_are_there(inbox):
    for rank in range(3):
        add(inbox, rank, 0)
    add(inbox, 0, 1)
    far = FOLLOWS + 8
    assert add(inbox, 2, far) == []
    assert add(inbox, 1, 1) == []
    assert add(inbox, 1, far) == [1]
    assert add(inbox, 0, far) == [far]


def test_a_manager_that_starts_within_a_job_takes_up_where_it_is(inbox):
    assert [add(inbox, rank, 123_456) for rank in range(3)] == [[], [], [123_456]]


def test_missing_reports_are_not_a_number(inbox):
    add(inbox, 0, 0, samples=6, own_time_s=0.5, draws=2)
    add(inbox, 1, 0, settled=False)
    add(inbox, 0, 1)
    closed = inbox.add(2, 1, 8, 0.1, 1, 0.0, True, ())[0]
    assert closed.iteration == 0
    assert closed.samples.tolist()[:2] == [3, 8]
    assert closed.time_s.tolist()[:2] == [0.25, 0.1]
    assert closed.settled.tolist() == [True, False, False]
    assert str(closed.time_s[2]) == "nan"


@pytest.mark.parametrize(
    ("kind", "rank", "iteration", "fields"),
    [
        (Rejection.UNKNOWN_RANK, 3, 1, {}),
        (Rejection.UNKNOWN_RANK, -1, 1, {}),
        (Rejection.STALE, 0, 0, {}),
        (Rejection.STALE, 0, -1, {}),
        (Rejection.FUTURE, 0, FAR_AHEAD + 1, {}),
        (Rejection.FUTURE, 0, 2**61, {}),
        (Rejection.ABSURD, 0, 1, {"own_time_s": float("nan")}),
        (Rejection.ABSURD, 0, 1, {"own_time_s": float("inf")}),
        (Rejection.ABSURD, 0, 1, {"own_time_s": 0.0}),
        (Rejection.ABSURD, 0, 1, {"own_time_s": -1.0}),
        (Rejection.ABSURD, 0, 1, {"own_time_s": 1e30}),
        (Rejection.ABSURD, 0, 1, {"own_time_s": 1001.0}),
        (Rejection.ABSURD, 0, 1, {"own_time_s": 0.9e-5}),
        (Rejection.ABSURD, 0, 1, {"samples": -1}),
        (Rejection.ABSURD, 0, 1, {"samples": 25}),
        (Rejection.ABSURD, 0, 1, {"samples": 49, "draws": 2}),
        (Rejection.ABSURD, 0, 1, {"draws": 0}),
        (Rejection.ABSURD, 0, 1, {"wait_s": float("nan")}),
        (Rejection.ABSURD, 0, 1, {"wait_s": -0.1}),
        (Rejection.SENSORS, 0, 1, {"sensors": (1.0,)}),
    ],
)
def test_bad_reports_are_named_and_leave_the_inbox_as_it_was(inbox, kind, rank, iteration, fields):
    for sound in range(3):
        add(inbox, sound, 0)
    assert rejected(inbox, rank, iteration, **fields) is kind
    assert [add(inbox, sound, 1) for sound in range(3)] == [[], [], [1]]


def test_a_duplicate_is_named_and_the_first_report_stays(inbox):
    add(inbox, 0, 0, own_time_s=0.1)
    assert rejected(inbox, 0, 0, own_time_s=0.2) is Rejection.DUPLICATE
    add(inbox, 1, 0)
    assert inbox.add(2, 0, 8, 0.1, 1, 0.0, True, ())[0].time_s[0] == 0.1


def test_a_time_absurd_for_long_enough_is_the_new_usual(inbox):
    for iteration in range(ABSURD_IN_A_ROW):
        assert [add(inbox, rank, iteration, own_time_s=900.0) for rank in range(3)][-1] == [iteration]
    first = ABSURD_IN_A_ROW
    for iteration in range(first, first + ABSURD_IN_A_ROW - 1):
        assert rejected(inbox, 0, iteration, own_time_s=0.01) is Rejection.ABSURD
    assert add(inbox, 0, first + FOLLOWS, own_time_s=0.01) == []
    assert add(inbox, 0, first + FOLLOWS + 1, own_time_s=0.01) == []


def test_ranks_far_ahead_together_are_believed_and_one_alone_is_not():
    inbox = Inbox(ranks=4, global_batch=24)
    for rank in range(4):
        add(inbox, rank, 0)
    assert rejected(inbox, 3, 2**60) is Rejection.FUTURE
    for rank in (0, 1, 2):
        assert rejected(inbox, rank, 5000) is Rejection.FUTURE
    assert add(inbox, 3, 5000) == []
    assert [add(inbox, rank, 5001) for rank in range(4)] == [[5000], [], [], [5001]]


def test_iterations_that_never_complete_hold_bounded_memory():
    inbox = Inbox(ranks=8, global_batch=24)
    for iteration in range(0, 20 * MOST_OPEN, 3):
        add(inbox, 0, iteration)
    assert len(inbox._open) <= MOST_OPEN
