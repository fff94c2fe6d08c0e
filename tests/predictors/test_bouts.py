"""Members that cost much take part in bouts: seldomer while they win too little, always while they win enough."""

import numpy as np
import pytest

from lbbsp.predictors import make
from lbbsp.predictors.bouts import AWAKE, BOUT, EARLY, FIRST, LEAST_REST, MOST_REST, WORTH, Bouts
from lbbsp.replay import steps

WARM_UP = 4
WORKERS, SENSORS = 6, 1


def rests(won, iterations):
    """Lengths of the rests in so many iterations in which they won so much each."""
    counted, lengths, length = Bouts(WARM_UP), [], 0
    for number in range(iterations):
        counted.step(won(number))
        if counted.resting:
            length += 1
        elif length:
            lengths.append(length)
            length = 0
    return lengths


def test_rests_double_while_they_win_nothing_and_end_at_the_longest():
    lengths = rests(lambda _: 0.0, 20 * MOST_REST)
    assert lengths[:4] == [LEAST_REST, 2 * LEAST_REST, 4 * LEAST_REST, 8 * LEAST_REST]
    assert set(lengths[4:]) == {MOST_REST}


def test_they_never_rest_while_they_win_enough():
    assert rests(lambda _: 2 * WORTH, 5000) == []


def test_they_do_not_rest_on_what_chance_explains():
    rng, counted = np.random.default_rng(0), Bouts(WARM_UP)
    for _ in range(FIRST):
        counted.step(rng.normal(0.0, 20 * WORTH))
    assert not counted.resting


def test_they_rest_again_when_they_have_stopped_winning():
    wins = range(2000, 4000)
    lengths = rests(lambda number: 2 * WORTH if number in wins else 0.0, 8000)
    assert lengths[:2] == [LEAST_REST, 2 * LEAST_REST]
    assert LEAST_REST in lengths[2:], "those that have won are trusted again"


def test_after_a_rest_they_look_on_before_they_count():
    counted, seen = Bouts(WARM_UP), []
    for _ in range(FIRST + LEAST_REST + WARM_UP + BOUT):
        seen.append((counted.resting, counted.judged))
        counted.step(0.0)
    assert seen[:FIRST] == [(False, True)] * FIRST
    assert seen[FIRST : FIRST + LEAST_REST] == [(True, False)] * LEAST_REST
    assert seen[FIRST + LEAST_REST :][:WARM_UP] == [(False, False)] * WARM_UP
    assert seen[-1] == (False, True)


def test_sensors_are_not_read_in_a_rest_until_shortly_before_its_end():
    counted, reading = Bouts(WARM_UP), []
    for _ in range(FIRST + LEAST_REST + WARM_UP + BOUT):
        reading.append(counted.reading)
        counted.step(0.0)
    assert reading == [True] * FIRST + [False] * (LEAST_REST - EARLY) + [True] * (EARLY + WARM_UP + BOUT)


@pytest.mark.parametrize("before", [0, FIRST // 2, FIRST + LEAST_REST // 2])
def test_while_the_job_rests_a_bout_waits_and_a_rest_goes_on(before):
    counted = Bouts(WARM_UP)
    for _ in range(before):
        counted.step(0.0)
    left, rest_left = counted._bout_left, counted._rest_left
    for number in range(1, 4):
        counted.expect_mean_of(30)
        counted.step(0.0)
        assert (counted.resting, counted.reading, counted.judged) == (True, False, False)
        assert counted._rest_left == max(0, rest_left - 30 * number)
    for _ in range(AWAKE):
        counted.expect_mean_of(1)
    assert counted.resting == (counted._rest_left > 0)
    assert not counted.judged, "they look on first"
    for _ in range(counted._rest_left + WARM_UP):
        counted.expect_mean_of(1)
        counted.step(0.0)
    assert counted.judged
    assert counted._bout_left == left


def told_of(rng, count):
    """Speeds that halve for single iterations, and a reading that tells of it before."""
    slow = rng.random((count + 1, WORKERS)) < 0.3
    speeds = np.where(slow[:-1], 50.0, 100.0) * np.exp(rng.normal(0, 0.01, (count, WORKERS)))
    return speeds, 10.0 * slow[1:, :, None]


def steady(rng, count):
    """Speeds that only jitter, and a reading that tells nothing."""
    return 100.0 * np.exp(rng.normal(0, 0.01, (count, WORKERS))), rng.random((count, WORKERS, SENSORS))


def followed(auto, speeds, readings):
    """Iterations that each member has learnt from; who was in charge after each; whether models rested then."""
    counts = dict.fromkeys(range(len(auto._members)), 0)
    for index, member in enumerate(auto._members):
        member.observe = counting(counts, index, member.observe)
    charges, rested = [], []
    for speed, reading in zip(speeds, readings, strict=True):
        auto.observe(speed, reading)
        auto.train(steps(2))
        forecast = auto.predict(reading)
        assert np.isfinite(forecast).all()
        assert (forecast > 0).all()
        charges.append(set(auto.in_charge()))
        rested.append(auto._bouts is not None and auto._bouts.resting)
        assert auto.reads_sensors or rested[-1] or not any(member.reads_sensors for member in auto._members)
    return list(counts.values()), charges, rested


def counting(counts, index, call):
    def observe(*arguments):
        counts[index] += 1
        call(*arguments)

    return observe


def test_a_model_whose_readings_tell_nothing_mostly_rests_and_plain_members_never():
    auto = make("auto:members=ema+last+arx", WORKERS, SENSORS)
    (ema, last, arx), charges, rested = followed(auto, *steady(np.random.default_rng(1), 3000))
    assert ema == last == 3000
    assert 300 < arx < 1500
    assert not auto.reads_sensors
    assert not any("arx" in names for names, at_rest in zip(charges, rested, strict=True) if at_rest)


def test_a_model_whose_readings_tell_what_comes_never_rests():
    auto = make("auto:members=ema+last+arx", WORKERS, SENSORS)
    counts, charges, rested = followed(auto, *told_of(np.random.default_rng(2), 1500))
    assert counts == [1500] * 3
    assert charges[-1] == {"arx"}
    assert not any(rested)


def test_a_model_that_comes_to_win_is_in_charge_again_after_its_rest():
    rng = np.random.default_rng(3)
    speeds, readings = (np.concatenate(both) for both in zip(steady(rng, 700), told_of(rng, 1500), strict=True))
    auto = make("auto:members=ema+last+arx", WORKERS, SENSORS)
    _, charges, rested = followed(auto, speeds, readings)
    assert any(rested)
    assert charges[-1] == {"arx"}


@pytest.mark.parametrize("members", ["arx", "arx+narx", "ema+last"])
def test_where_there_is_no_plain_member_or_no_other_nobody_rests(members):
    auto = make(f"auto:members={members}", WORKERS, SENSORS)
    counts, _, rested = followed(auto, *steady(np.random.default_rng(4), 700))
    assert set(counts) == {700}
    assert not any(rested)


def test_at_longer_horizons_too_what_rests_is_never_in_charge():
    auto = make("auto:members=ema+arx", WORKERS, SENSORS, horizon=4)
    (_, arx), charges, rested = followed(auto, *steady(np.random.default_rng(5), 2000))
    assert arx < 1500
    assert not any("arx" in names for names, at_rest in zip(charges, rested, strict=True) if at_rest)


@pytest.mark.parametrize("horizon", [1, 4])
def test_what_stands_in_for_those_that_rest_is_never_judged(horizon):
    speeds, readings = steady(np.random.default_rng(6), 1200)
    speeds *= np.linspace(1.0, 2.0, WORKERS)
    outcomes = []
    for poison in (1.0, 1e6):
        auto = make("auto:members=ema+last+arx", WORKERS, SENSORS, horizon=horizon)
        inner = auto._forecasts

        def poisoned(sensors, far, auto=auto, inner=inner, poison=poison):
            rows = inner(sensors, far)
            rows[2] *= poison if auto._resting else 1.0
            return rows

        auto._forecasts = poisoned
        _, charges, rested = followed(auto, speeds, readings)
        assert any(rested)
        outcomes.append((charges, rested, auto.predict(readings[-1]).tolist()))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("name", ["arx", "narx"])
def test_a_model_that_missed_iterations_takes_no_jump_in_them_for_one_of_a_single_iteration(name):
    rng = np.random.default_rng(7)
    speeds, readings = steady(rng, 200)
    model = make(name, WORKERS, SENSORS)
    for speed, reading in zip(speeds, readings, strict=True):
        model.observe(speed, reading)
        model.train(steps(2))
    before = model._inputs.step
    model.skip()
    for speed, reading in zip(0.4 * speeds[:20], readings[:20], strict=True):
        model.observe(speed, reading)
    assert model._inputs.step < 1.5 * before
    np.testing.assert_allclose(model.predict(readings[19]), 40.0, rtol=0.1)
    assert (model.error() < 0.1).all()


def test_in_a_job_that_rests_no_model_takes_part_or_is_in_charge_and_it_comes_back_afterwards():
    rng = np.random.default_rng(9)
    auto = make("auto:members=ema+last+arx", WORKERS, SENSORS)
    followed(auto, *told_of(rng, 800))
    assert set(auto.in_charge()) == {"arx"}
    auto.expect_mean_of(16)
    assert (auto.trains, auto.reads_sensors) == (False, False)
    assert "arx" not in auto.in_charge()
    (_, _, arx), charges, _ = followed(auto, *steady(rng, 100))
    assert arx == 0
    assert not any("arx" in names for names in charges)
    for _ in range(AWAKE):
        auto.expect_mean_of(1)
    (_, _, arx), charges, _ = followed(auto, *told_of(rng, 800))
    assert arx == 800
    assert charges[-1] == {"arx"}


def test_only_while_a_model_takes_part_is_there_anything_to_train():
    auto = make("auto:members=ema+narx", WORKERS, SENSORS)
    assert auto.trains
    auto.expect_mean_of(2)
    assert not auto.trains
    for _ in range(AWAKE):
        auto.expect_mean_of(1)
    assert auto.trains


def test_few_iterations_told_of_alone_between_rests_wake_nobody():
    auto = make("auto:members=ema+narx", WORKERS, SENSORS)
    for iterations in (31, 1, 31, 1, 1, 31, 1, 1, 1, 31):
        auto.expect_mean_of(iterations)
        assert (auto.trains, auto.reads_sensors) == (False, False)


def test_sensors_are_asked_for_again_before_a_rest_ends():
    auto = make("auto:members=ema+last+arx", WORKERS, SENSORS)
    asked = []
    for speed, reading in zip(*steady(np.random.default_rng(8), FIRST + LEAST_REST + 20), strict=True):
        auto.observe(speed, reading)
        asked.append((auto._resting, auto.reads_sensors))
    last = max(place for place, (resting, _) in enumerate(asked) if resting)
    assert [reads for _, reads in asked[last - EARLY + 1 : last + 1]] == [True] * EARLY
    assert asked.count((True, False)) == LEAST_REST - EARLY
