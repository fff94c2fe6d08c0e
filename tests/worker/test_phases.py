"""Where an iteration's own time goes: each part once, waits for others in none, nine iterations in ten not at all."""

import pytest

from lbbsp.worker.owntime import HostMarks
from lbbsp.worker.phases import EVERY, Phases, seconds


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def after(self, time_s: float) -> None:
        self.now_s += time_s


class Step:
    """One rank's steps: 1 s before forward, 2 s forward, 4 s backward, 8 s of the rest."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.marks = HostMarks(self.clock)
        self.phases = Phases(self.marks)

    def draw(self, before_s: float = 1.0) -> None:
        self.phases.drawn()
        self.clock.after(before_s)

    def forward(self, wait_s: float = 0.0) -> None:
        self.phases.forward()
        if wait_s:
            self.clock.after(wait_s)
            self.phases.resumed()
        self.clock.after(2.0)
        self.phases.forwarded()

    def backward(self) -> None:
        self.clock.after(8.0)
        self.phases.backward()
        self.clock.after(4.0)
        self.phases.backwarded()

    def take(self) -> tuple[float, ...]:
        return seconds(self.phases.take(), self.marks)

    def looked_at(self) -> "Step":
        """The next iteration is one that is looked at."""
        for _ in range(EVERY):
            assert self.take() == ()
        return self


@pytest.fixture
def step() -> Step:
    return Step()


def test_one_iteration_in_ten_is_told_part_by_part(step: Step) -> None:
    told = []
    for _ in range(3 * EVERY):
        step.draw()
        step.forward()
        step.backward()
        told.append(step.take())
    assert [k for k, phases_s in enumerate(told) if phases_s] == [EVERY, 2 * EVERY]
    assert set(told) == {(), (1.0, 2.0, 4.0)}


def test_accumulated_batches_and_models_of_their_own_add_up(step: Step) -> None:
    step.looked_at()
    for _ in range(2):
        step.draw()
        step.forward()
        step.forward()
        step.backward()
    assert step.take() == (2.0, 8.0, 8.0)


def test_a_wait_for_others_at_the_start_of_forward_counts_nowhere(step: Step) -> None:
    step.looked_at().draw()
    step.forward(wait_s=100.0)
    assert step.take() == (1.0, 2.0, 0.0)


def test_passes_without_gradients_count_nowhere(step: Step) -> None:
    """Their hooks after forward and after a wait run all the same."""
    step.looked_at().draw()
    step.clock.after(3.0)
    step.phases.resumed()
    step.phases.forwarded()
    step.forward()
    assert step.take() == (4.0, 2.0, 0.0)


def test_the_last_gradient_ends_backward_where_its_time_is_known(step: Step) -> None:
    step.looked_at()
    step.phases.backward()
    step.clock.after(4.0)
    last = step.marks.stamp()
    step.clock.after(1.0)
    step.phases.backwarded(last)
    assert step.take() == (0.0, 0.0, 4.0)


def test_what_was_broken_off_does_not_leak_into_the_next_iteration(step: Step) -> None:
    step.looked_at().draw()
    step.phases.forward()
    step.phases.backward()
    assert step.take() == (1.0, 0.0, 0.0)
    for _ in range(EVERY - 1):
        assert step.take() == ()
    step.phases.forwarded()
    step.phases.backwarded()
    assert step.take() == ()


def test_a_busy_device_tells_nothing() -> None:
    class Busy:
        def stamp(self) -> int:
            return 0

        def between(self, start: int, end: int) -> None:
            return None

    assert seconds([(0, 0, 0)], Busy()) == ()
