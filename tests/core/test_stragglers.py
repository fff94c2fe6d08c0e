"""A slow rank is flagged within ten iterations by every detector, a rank that was given more by none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_jobs import Job, sight

from lbbsp.core.detectors import DEFAULT, DETECTORS, chosen, make
from lbbsp.core.flags import LASTING
from lbbsp.core.job import JobSpec
from lbbsp.core.manager import BatchSizeManager
from lbbsp.core.sight import Sight
from lbbsp.core.sizing import Bounds
from lbbsp.core.stragglers import Change, Stragglers
from lbbsp.errors import ConfigError
from lbbsp.service.journal_records import decode, encode

every = pytest.mark.parametrize("name", DETECTORS)
own_past = pytest.mark.parametrize("name", sorted(DETECTORS.keys() - {"threshold", "quartiles"}))


@every
@pytest.mark.parametrize("factor", [1.5, 3.0])
def test_a_slow_rank_is_flagged_within_ten_iterations_and_cleared_when_it_is_back(name, factor):
    job = Job(detectors=(name,)).run(60)
    assert job.flagged == []
    job.slow(2, factor).run(10)
    assert job.flagged == [2]
    job.slow(2, 1.0).run(12)
    assert job.flagged == []
    assert [event.change for event in job.events if event.change is not Change.EXPLAINED] == ["raised", "cleared"]


@every
def test_one_bad_iteration_flags_nobody(name):
    job = Job(detectors=(name,)).run(60)
    for _ in range(5):
        job.slow(1, 5.0).run(1)
        job.slow(1, 1.0).run(15)
    assert job.events == []


@every
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), noise=st.floats(0.0, 0.04), ranks=st.integers(2, 40))
def test_noise_alone_flags_nobody(name, seed, noise, ranks):
    assert Job(ranks, (name,), noise, seed).run(150).events == []


@own_past
def test_what_slows_all_ranks_accuses_nobody(name):
    job = Job(detectors=(name,)).run(60)
    job.factor[:] = 2.0
    assert job.run(60).events == []


@own_past
def test_a_rank_that_was_always_slower_is_no_straggler_by_its_own_past(name):
    forecast_s = np.array([0.1] * 5 + [0.3])
    job = Job(detectors=(name,)).slow(5, 3.0).run(100, forecast_s=forecast_s)
    assert job.events == []


@every
def test_a_flag_stays_while_the_rank_is_slow(name):
    job = Job(detectors=(name,)).run(60)
    job.slow(2, 1.6).run(300)
    assert job.flagged == [2]
    assert job.watcher.flagged[2].lasting
    assert 60 <= job.watcher.flagged[2].since <= 65
    assert LASTING < 300


@pytest.mark.parametrize("name", ["history", "threshold"])
def test_a_slow_drift_is_flagged_before_it_has_grown_to_a_half(name):
    job = Job(detectors=(name,)).run(60)
    for step in range(100):
        job.slow(2, 1.0 + 0.005 * step).run(1)
    assert job.flagged == [2]


@every
def test_missing_reports_and_warm_up_are_passed_over(name):
    job = Job(detectors=(name,))
    unsettled = np.where(np.arange(6) == 3, np.nan, 0.1)
    for _ in range(30):
        job.watcher.see(sight(job.iteration, unsettled, forecast_s=np.full(6, 0.1)))
        job.iteration += 1
    assert job.flagged == []
    nobody = np.full(6, np.nan)
    assert job.watcher.see(sight(99, nobody, wait_s=np.zeros(6))) == []


@every
def test_a_permutation_of_ranks_permutes_the_judgement(name):
    order = np.array([3, 0, 2, 1, 5, 4])
    one, other = make(name, 6), make(name, 6)
    rng = np.random.default_rng(0)
    for k in range(40):
        time_s = rng.uniform(0.08, 0.2, 6)
        a = one.judge(sight(k, time_s, forecast_s=np.full(6, 0.1)))
        b = other.judge(sight(k, time_s[order], forecast_s=np.full(6, 0.1)))
        np.testing.assert_allclose(a.slowdown[order], b.slowdown)


@every
def test_thresholds_change_while_the_job_runs(name):
    job = Job(detectors=(name,)).run(60)
    job.watcher.adjust(name, ratio=4.0)
    job.slow(2, 2.0).run(20)
    assert job.flagged == []
    job.watcher.adjust(name, ratio=1.3)
    job.run(10)
    assert job.flagged == [2]
    with pytest.raises(ConfigError, match=r"unknown threshold 'no'; known: .*ratio"):
        job.watcher.adjust(name, no=1.0)
    with pytest.raises(ConfigError, match="above 0"):
        job.watcher.adjust(name, ratio=-1.0)


def test_seconds_are_a_threshold_too():
    job = Job(detectors=("threshold",)).run(10)
    job.watcher.adjust("threshold", seconds=0.015)
    assert job.slow(0, 1.2).run(10).flagged == [0]


def test_unknown_names_are_named():
    with pytest.raises(ConfigError, match="unknown detector 'x'; known: forecast"):
        Stragglers(2, detectors=("x",))
    with pytest.raises(ConfigError, match="no detector 'robust' here"):
        Stragglers(2).adjust("robust", ratio=2.0)


def test_detectors_are_chosen_by_text_and_unknown_ones_are_named():
    assert chosen("history") == DEFAULT
    assert chosen(" robust, history,robust") == ("robust", "history")
    assert chosen("none") == ()
    for text in ("robust,x", "none,robust", "", ","):
        with pytest.raises(ConfigError, match="known: forecast"):
            chosen(text)


def test_without_detectors_only_silence_is_flagged_and_the_newest_iteration_is_still_shown():
    job = Job(detectors=()).run(60)
    assert job.slow(2, 3.0).run(20).events == []
    assert job.watcher.newest.iteration == 79
    assert job.watcher.given_more() == {}
    silent = np.arange(6) == 4
    (event,) = job.watcher.hear(silent, np.where(silent, 7.0, 0.1))
    assert (event.rank, event.diagnosis.cause) == (4, "no reports")


@own_past
def test_what_is_usual_of_a_device_is_told_and_taken_over_wherever_its_rank_is(name):
    """A restarted manager knows at once that the rank is slow, and nobody else is."""
    earlier = Job(detectors=(name,)).run(60)
    state = decode(encode(earlier.watcher.told()), dict)
    job = Job(detectors=(name,), seed=1).slow(4, 2.0)
    job.watcher.inherit(state, np.arange(6), np.array([5, 3, 1, 0, 2, 4]))
    assert job.run(6).flagged == [4]
    assert job.run(60).flagged == [4]


@every
def test_what_does_not_fit_is_not_taken_over(name):
    """More ranks there than were told of, another detector's figures, none at all: as from the start."""
    told = Job(ranks=3, detectors=(name,)).run(60).watcher.told()
    other = {key: {"_expected_s": np.zeros((2, 6)), "_count": [1.0] * 6, 3: "x"} for key in told}
    for state in (told, other, {name: 7}, None, []):
        job = Job(detectors=(name,))
        job.watcher.inherit(state, np.arange(6), np.arange(6))
        fresh = Job(detectors=(name,))
        for one in (job, fresh):
            one.run(40).slow(2, 2.0).run(10)
        assert job.flagged == fresh.flagged == [2]
        np.testing.assert_array_equal(job.watcher.slowdown, fresh.watcher.slowdown)


def test_silence_is_flagged_and_cleared():
    job = Job().run(20)
    silent = np.arange(6) == 4
    (event,) = job.watcher.hear(silent, np.where(silent, 7.0, 0.1))
    assert (event.change, event.rank, event.diagnosis.cause) == (Change.RAISED, 4, "no reports")
    assert "7 s" in event.diagnosis.evidence
    (event,) = job.watcher.hear(np.zeros(6, dtype=bool), np.zeros(6))
    assert event.change is Change.CLEARED


def managed_job(theta, speed, sizes, iterations, slow=None, seed=0):
    """Flags of all detectors on a job whose sizes somebody else decides, by iteration: sizes(k) -> (ranks,)."""
    ranks = len(theta)
    spec = JobSpec(Bounds(64 * ranks, np.ones(ranks), np.full(ranks, 64 * ranks)))
    manager, watcher = BatchSizeManager(spec), Stragglers(ranks, detectors=tuple(DETECTORS))
    rng, events = np.random.default_rng(seed), []
    for k in range(iterations):
        x = np.asarray(sizes(k), dtype=int)
        own_s = (theta + x) / speed * np.exp(0.02 * rng.standard_normal(ranks)) * (slow(k) if slow else 1.0)
        for rank in range(ranks):
            manager.report(rank, k, int(x[rank]), float(own_s[rank]), wait_s=float(own_s.max() - own_s[rank]))
        events += watcher.see(manager.sight())
    return watcher, events


@pytest.mark.parametrize("theta", [0.0, 16.0, 64.0])
def test_a_rank_given_twice_the_work_is_flagged_by_no_detector(theta):
    def sizes(k):
        return [64] * 6 if k < 60 else [128, 52, 51, 51, 51, 51]

    watcher, events = managed_job(np.full(6, theta), np.full(6, 1000.0), sizes, 150)
    assert events == []
    (note,) = watcher.given_more().values()
    assert note.cause == "more work by plan"
    assert "128 samples, 2.00 times an equal share" in note.evidence


@pytest.mark.parametrize("seed", range(4))
def test_a_cut_after_one_bad_iteration_flags_nobody_whose_fixed_cost_is_not_known(seed):
    """A rank with a large fixed cost takes long for the few samples that it has then."""

    def sizes(k):
        few = 47 if k <= 60 else 19 if k <= 63 else 33
        return [few, *([67] * 4), 6 * 64 - 4 * 67 - few]

    def slow(k):
        return np.array([4.0 if k == 60 else 1.0, 1, 1, 1, 1, 1])

    _, events = managed_job(np.full(6, 28.0), np.full(6, 600.0), sizes, 100, slow, seed)
    by = {name for event in events for name in event.detectors}
    assert by <= {"threshold", "quartiles"}, "these know no past"


def test_a_slow_rank_whose_share_was_cut_is_still_flagged():
    """Own times are equal again once sizes follow: what was given tells."""

    def sizes(k):
        return [64] * 6 if k < 61 else [36, 69, 69, 70, 70, 70]

    slow = np.array([2.0, 1, 1, 1, 1, 1])
    watcher, _ = managed_job(np.zeros(6), np.full(6, 1000.0), sizes, 90, lambda k: slow if k >= 60 else np.ones(6))
    for name in DETECTORS.keys() - {"forecast"}:
        assert np.flatnonzero(watcher.flags(name)).tolist() == [0], name


@pytest.mark.parametrize("step", [1, 2, 5, 8])
def test_a_flagged_rank_is_looked_at_again_whatever_iterations_are_seen(step):
    stragglers = Stragglers(3)

    def see(iteration: int, slow: float) -> None:
        times, unknown = np.array([1.0, 1.0, slow]), np.full(3, np.nan)
        some = np.zeros(3)
        stragglers.see(
            Sight(iteration, np.full(3, 64.0), times, times, np.ones(3), some, some, unknown, np.zeros((3, 0)))
        )

    for iteration in range(400):
        see(iteration, 1.0)
    for iteration in range(400, 412):
        see(iteration, 2.0)
    for start in range(step):
        for iteration in range(412 + start + 1000 * start, 1000 + 1000 * start, step):
            see(iteration, 4.0)
        assert stragglers.flagged[2].slowdown == pytest.approx(stragglers.slowdown[2], rel=0.05)
    assert stragglers.flagged[2].lasting
