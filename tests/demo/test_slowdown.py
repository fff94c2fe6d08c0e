import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-m", "lbbsp.demo.slowdown", str(os.getpid()), *sys.argv[1:]])
print(child.pid, flush=True)
time.sleep(60)
"""


def pausing(worker):
    return subprocess.Popen([sys.executable, "-m", "lbbsp.demo.slowdown", str(os.getpid()), "pauses", str(worker.pid)])


def wait_for(condition, timeout_s=20.0):
    until_s = time.perf_counter() + timeout_s
    while not condition():
        assert time.perf_counter() < until_s, "waited too long"
        time.sleep(0.02)


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("how", ["busy", "pauses"])
def test_it_ends_when_its_parent_is_killed(how, sleeper):
    target = sleeper.pid if how == "pauses" else min(os.sched_getaffinity(0))
    parent = subprocess.Popen([sys.executable, "-c", PARENT, how, str(target)], stdout=subprocess.PIPE)
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_pauses_stop_the_worker_and_leave_it_running(sleeper):
    slowdown = pausing(sleeper)
    worker = psutil.Process(sleeper.pid)
    wait_for(lambda: worker.status() == psutil.STATUS_STOPPED)
    slowdown.send_signal(signal.SIGTERM)
    assert slowdown.wait(timeout=10) == 0
    wait_for(lambda: worker.status() != psutil.STATUS_STOPPED)


def test_pauses_end_with_the_worker(sleeper):
    slowdown = pausing(sleeper)
    sleeper.kill()
    sleeper.wait()
    assert slowdown.wait(timeout=20) == 0
