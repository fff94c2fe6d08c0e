import os
import threading

import pytest

from lbbsp.protocol import Hello
from lbbsp.worker.client import Client
from lbbsp.worker.roaming import roaming

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no way to pin on this system")


HELLO = Hello(job="j", incarnation="i", rank=0, world_size=1, global_batch=1, min_samples=0, max_samples=1)


@pytest.fixture
def pinned():
    """This thread on one core; gives all that it had."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield cores
    os.sched_setaffinity(0, cores)


def thread_ids() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


def test_threads_begun_inside_roam_and_this_one_stays_pinned(pinned):
    found = []
    with roaming():
        thread = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))
        thread.start()
    thread.join()
    assert found[0] >= pinned
    assert os.sched_getaffinity(0) == {min(pinned)}


def test_an_error_inside_leaves_this_thread_pinned(pinned):
    with pytest.raises(RuntimeError), roaming():
        raise RuntimeError("x")
    assert os.sched_getaffinity(0) == {min(pinned)}


def test_a_pinned_rank_s_line_to_the_manager_is_not_pinned(pinned):
    before = thread_ids()
    client = Client("tcp://127.0.0.1:1", HELLO)
    try:
        made = thread_ids() - before
        assert made
        assert all(os.sched_getaffinity(thread) >= pinned for thread in made)
    finally:
        client.close()
