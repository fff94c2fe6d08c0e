"""Rule 7: own work only. Waits, and validations and checkpoints between iterations, are out; ordinary tails are in."""

import pytest

from lbbsp.worker.owntime import HostMarks, OwnTime

WORK_S, WAIT_S, TAIL_S = 0.1, 0.03, 0.02


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Loop:
    """A training loop with nothing in it but time."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.own = OwnTime(HostMarks(self.clock), self.clock)

    def iteration(self, tail_s: float = TAIL_S, outside: bool = False, broadcasts: int = 0) -> float:
        """Tail of the reduction before, draw, work, reduction; the own time of it all."""
        for _ in range(broadcasts):  # of buffers, in forward passes between reduction and draw
            self.pass_s(tail_s / (broadcasts + 1))
            self.own.stop()
            self.pass_s(WAIT_S)
            self.own.start()
        self.pass_s(tail_s / (broadcasts + 1))
        self.own.end_tail(WORK_S + WAIT_S, outside)
        self.own.stop()
        self.pass_s(WAIT_S)  # for the plan
        self.own.start()
        self.pass_s(WORK_S)
        self.own.stop()
        time_s = self.own.take().own_time_s(self.own.marks)
        assert time_s is not None
        self.pass_s(WAIT_S)  # for the reduction
        self.own.start_tail()
        return time_s

    def pass_s(self, time_s: float) -> None:
        self.clock.now_s += time_s


@pytest.fixture
def loop() -> Loop:
    """One in which the usual tail is known."""
    loop = Loop()
    loop.iteration()
    for _ in range(10):
        assert loop.iteration() == pytest.approx(WORK_S + TAIL_S)
    return loop


def test_waits_are_no_own_time_and_the_usual_tail_is_known(loop: Loop) -> None:
    assert loop.iteration() == pytest.approx(WORK_S + TAIL_S)
    assert loop.own.usual_tail_s == pytest.approx(TAIL_S)


@pytest.mark.parametrize("tail_s", [0.0, 0.001, 0.08])
def test_an_ordinary_tail_is_kept_also_where_it_varies(loop: Loop, tail_s: float) -> None:
    assert loop.iteration(tail_s) == pytest.approx(WORK_S + tail_s)


@pytest.mark.parametrize("tail_s", [0.2, 5.0, 3600.0])
def test_a_validation_or_checkpoint_is_replaced_by_the_usual_tail(loop: Loop, tail_s: float) -> None:
    assert loop.iteration(tail_s) == pytest.approx(WORK_S + TAIL_S)
    assert loop.iteration() == pytest.approx(WORK_S + TAIL_S)


def test_a_validation_whose_forward_passes_broadcast_buffers_is_replaced_as_a_whole(loop: Loop) -> None:
    """Each such wait cuts the tail in two."""
    assert loop.iteration(tail_s=5.0, broadcasts=9) == pytest.approx(WORK_S + TAIL_S)


def test_buffers_broadcast_in_an_ordinary_tail_are_waits(loop: Loop) -> None:
    assert loop.iteration(broadcasts=1) == pytest.approx(WORK_S + TAIL_S)


def test_what_the_caller_knows_to_lie_outside_is_replaced_however_short(loop: Loop) -> None:
    assert loop.iteration(tail_s=0.03, outside=True) == pytest.approx(WORK_S + TAIL_S)


def test_a_long_tail_that_is_the_usual_one_is_own_work() -> None:
    """AdamW over a large model may take as long as the rest."""
    loop = Loop()
    loop.iteration()
    assert [loop.iteration(0.4) for _ in range(20)] == pytest.approx([WORK_S + 0.4] * 20)


def test_a_lasting_change_of_the_tail_below_the_outliers_is_followed(loop: Loop) -> None:
    times = [loop.iteration(4 * TAIL_S) for _ in range(40)]
    assert times == pytest.approx([WORK_S + 4 * TAIL_S] * 40)
    assert loop.own.usual_tail_s == pytest.approx(4 * TAIL_S)


def test_many_validations_do_not_become_usual(loop: Loop) -> None:
    assert [loop.iteration(2.0) for _ in range(50)] == pytest.approx([WORK_S + TAIL_S] * 50)


def test_a_validation_among_the_first_iterations_is_replaced_too() -> None:
    loop = Loop()
    loop.iteration()
    loop.iteration()
    assert loop.iteration(30.0) == pytest.approx(WORK_S + TAIL_S)


def test_starting_twice_and_stopping_twice_count_once(loop: Loop) -> None:
    loop.own.end_tail(1.0)
    loop.own.start()
    loop.pass_s(0.1)
    loop.own.start()
    loop.pass_s(0.1)
    loop.own.stop()
    loop.pass_s(0.1)
    loop.own.stop()
    assert loop.own.take().own_time_s(loop.own.marks) == pytest.approx(0.2)


def test_a_wait_may_have_begun_at_an_earlier_stamp(loop: Loop) -> None:
    loop.own.end_tail(1.0)
    loop.own.start()
    loop.pass_s(0.1)
    last_gradient = loop.own.marks.stamp()
    loop.pass_s(0.5)
    loop.own.stop(last_gradient)
    assert loop.own.take().own_time_s(loop.own.marks) == pytest.approx(0.1)


class Device:
    """Stamps that can be read only when the device has come so far."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self.done_s = clock, 0.0
        self.stamp = clock

    def between(self, start: float, end: float) -> float | None:
        return end - start if end <= self.done_s else None


def test_a_window_is_unknown_until_the_device_has_reached_its_end() -> None:
    clock = Clock()
    device = Device(clock)
    own = OwnTime(device, clock)
    own.start()
    clock.now_s += 0.1
    own.stop()
    window = own.take()
    assert window.own_time_s(device) is None
    device.done_s = clock.now_s
    assert window.own_time_s(device) == pytest.approx(0.1)
