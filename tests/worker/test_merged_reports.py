"""Reports held back become one of each run of iterations that are alike: nothing is lost but what differs by noise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from scripted import report

from lbbsp.protocol import Report
from lbbsp.worker.merged import merged

SECONDS = st.floats(1e-3, 10.0)
ANY = st.builds(
    lambda own_s, wait_s, input_s, samples, settled, cost: replace(
        report(0), own_time_s=own_s, wait_s=wait_s, input_s=input_s, samples=samples, settled=settled, cost=cost
    ),
    SECONDS, SECONDS, SECONDS, st.sampled_from([50, 50, 50, 40]), st.sampled_from([True, True, False]),
    st.sampled_from([0.0, 3.0, 5.0]),
)  # fmt: skip


def numbered(reports: list[Report], gaps: set[int] = frozenset()) -> list[Report]:
    numbers = [number for number in range(len(reports) + len(gaps)) if number not in gaps]
    return [replace(one, iteration=number) for one, number in zip(reports, numbers, strict=False)]


@given(st.lists(ANY, min_size=1, max_size=8), st.sets(st.integers(0, 7), max_size=2))
def test_each_iteration_is_told_of_once_and_sums_stay(reports, gaps) -> None:
    reports = numbered(reports, gaps)
    told = merged(reports)
    covered = [one.iteration - back for one in told for back in reversed(range(one.iterations))]
    assert covered == [one.iteration for one in reports]
    for field in ("own_time_s", "wait_s", "input_s", "cost", "samples"):
        weighed = sum(getattr(one, field) * one.iterations for one in told)
        assert weighed == pytest.approx(sum(getattr(one, field) for one in reports)), field


@given(st.lists(ANY, min_size=1, max_size=8))
def test_what_says_something_of_speed_is_never_merged_with_what_does_not_nor_sizes_with_others(reports) -> None:
    reports = numbered(reports)
    kinds = {one.iteration: (one.samples, one.settled, one.cost > 0) for one in reports}
    for one in merged(reports):
        run = {kinds[one.iteration - back] for back in range(one.iterations)}
        assert run == {(one.samples, one.settled, one.cost > 0)}


def test_the_newest_readings_are_kept_and_the_mean_of_the_parts_that_were_looked_at() -> None:
    said = [{"sensors": (1.0,)}, {"phases_s": (0.1, 0.2, 0.3)}, {"sensors": (2.0,)}, {"phases_s": (0.3, 0.2, 0.1)}, {}]
    (one,) = merged(numbered([replace(report(0), **fields) for fields in said]))
    assert one.sensors == (2.0,)
    assert one.phases_s == pytest.approx((0.2, 0.2, 0.2))


@pytest.mark.parametrize("field", ["draws", "max_samples", "planned", "claimed", "fixed_s"])
def test_iterations_that_differ_otherwise_stay_apart(field: str) -> None:
    reports = numbered([report(0), replace(report(0), **{field: 7}), replace(report(0), **{field: 7})])
    assert [one.iterations for one in merged(reports)] == [1, 2]


def test_one_alone_stays_as_it_is() -> None:
    assert merged([report(3)]) == [report(3)]
    assert merged([]) == []
