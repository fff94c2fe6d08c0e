"""Helper threads with short slices: what begins inside gets them, what was there before does not."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lbbsp.prompt import SLICE_NS, prompt_threads
from lbbsp.worker.line import open_line

KERNEL = tuple(int(part) for part in os.uname().release.split(".")[:2]) if sys.platform == "linux" else (0, 0)
pytestmark = pytest.mark.skipif(
    KERNEL < (6, 12) or not Path("/proc/self/sched").exists(),
    reason="this kernel has no slices to ask for, or hides them",
)


def slice_ns(thread: int) -> int:
    lines = Path(f"/proc/self/task/{thread}/sched").read_text().splitlines()
    return int(next(line.split(":")[1] for line in lines if line.startswith("se.slice")))


def mine() -> int:
    return threading.get_native_id()


def numbers_of(script: str) -> list[int]:
    """What a process of its own prints."""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    return [int(word) for word in said.split()]


def test_threads_begun_inside_get_short_slices_and_this_one_does_not():
    before, done = slice_ns(mine()), threading.Event()
    thread = threading.Thread(target=done.wait)
    with prompt_threads():
        thread.start()
    try:
        assert slice_ns(thread.native_id) == SLICE_NS < before
        assert slice_ns(mine()) == before
    finally:
        done.set()
        thread.join()


def test_a_line_to_the_manager_is_prompt():
    before = set(os.listdir("/proc/self/task"))
    context, _ = open_line("tcp://127.0.0.1:1", None)
    try:
        made = set(os.listdir("/proc/self/task")) - before
        assert made
        assert {slice_ns(int(thread)) for thread in made} == {SLICE_NS}
    finally:
        context.destroy(linger=0)


def test_nice_and_policy_stay_as_they_were():
    script = (
        "import os; from lbbsp.prompt import be_prompt; os.nice(3); be_prompt(); "
        "print(os.nice(0), os.sched_getscheduler(0))"
    )
    assert numbers_of(script) == [3, os.SCHED_OTHER]


def test_a_process_becomes_prompt_whole():
    script = (
        "from lbbsp.prompt import be_prompt; be_prompt(); "
        "print([line.split(':')[1] for line in open('/proc/self/sched') if line.startswith('se.slice')][0])"
    )
    assert numbers_of(script) == [SLICE_NS]


POLICY = "print(os.sched_getscheduler(0))"
LOOK = "lines = [each.split(':')[1] for each in open('/proc/self/sched') if 'se.slice' in each]; "
LOOK += "print(os.sched_getscheduler(0), lines[0])"


def test_while_nothing_is_urgent_a_thread_interrupts_nobody_and_then_it_is_prompt_again():
    batch, _, usual, slice_ = numbers_of(
        "import os; from lbbsp.prompt import Urgency; urgency = Urgency(); urgency.be(False); "
        f"{LOOK}; urgency.be(True); {LOOK}"
    )
    assert (batch, usual, slice_) == (os.SCHED_BATCH, os.SCHED_OTHER, SLICE_NS)


@pytest.mark.parametrize("before", [True, False])
def test_a_policy_that_somebody_chose_for_the_process_stays(before):
    chosen = "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); "
    made = "from lbbsp.prompt import Urgency; urgency = Urgency(); "
    begun = chosen + made if before else made + chosen
    said = numbers_of(f"import os; {begun} urgency.be(False); {POLICY}; urgency.be(True); {POLICY}")
    assert said == [os.SCHED_IDLE, os.SCHED_IDLE]


def test_where_the_system_allows_no_policies_nothing_changes_and_nothing_is_raised():
    said = numbers_of(
        "import os; from lbbsp.prompt import Urgency\n"
        "def refuse(*_): raise PermissionError\n"
        "look, os.sched_getscheduler = os.sched_getscheduler, refuse\n"
        "urgency = Urgency(); urgency.be(False); urgency.be(True); print(look(0))"
    )
    assert said == [os.SCHED_OTHER]
