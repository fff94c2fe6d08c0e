"""The embedded manager is the job's own: keys for it alone, and gone when its parent is, however that ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import zmq

from lbbsp.errors import ServiceError
from lbbsp.protocol import Hello
from lbbsp.worker import embedded
from lbbsp.worker.client import Client, CurveKeys

HELLO = Hello(job="j", incarnation="i", rank=0, world_size=1, global_batch=10, min_samples=0, max_samples=10)

PARENT = """
import os, sys, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from lbbsp.worker import embedded
before = os.fork()  # a loader worker of an earlier epoch
if before == 0:
    time.sleep(60)
    os._exit(0)
manager = embedded.start()
after = os.fork()  # one that inherits all that we hold
if after == 0:
    time.sleep(60)
    os._exit(0)
print(before, after, manager.process.pid, flush=True)
END
"""


def welcomed(client: Client, timeout_s: float) -> bool:
    deadline_s = time.perf_counter() + timeout_s
    while client.away and time.perf_counter() < deadline_s:
        client.pump(0.01)
    return not client.away


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until(condition) -> bool:
    deadline_s = time.perf_counter() + 10
    while not condition() and time.perf_counter() < deadline_s:
        time.sleep(0.02)
    return bool(condition())


@pytest.fixture
def manager():
    running = embedded.start()
    yield running
    running.stop()


def test_its_keys_open_it_and_no_others_do(manager):
    client = Client(manager.address, HELLO, curve=manager.curve)
    assert welcomed(client, 10)
    public, secret = (key.decode() for key in zmq.curve_keypair())
    strange = CurveKeys(server_public=manager.curve.server_public, client_public=public, client_secret=secret)
    for keys in (None, strange):
        stranger = Client(manager.address, HELLO, curve=keys)
        assert not welcomed(stranger, 0.3)
        stranger.close()
    client.close()


def test_its_keys_show_neither_on_the_command_line_nor_in_the_environment(manager):
    for name in ("cmdline", "environ"):
        text = Path(f"/proc/{manager.process.pid}/{name}").read_text()
        assert manager.curve.server_public not in text
        assert manager.curve.client_secret not in text


def test_it_uses_all_cores_though_its_parent_is_pinned():
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        running = embedded.start()
        assert os.sched_getaffinity(running.process.pid) == cores
        running.stop()
    finally:
        os.sched_setaffinity(0, cores)


@pytest.mark.parametrize("end", ["killed", "returns", "raises", "exits at once"])
def test_it_ends_with_its_parent_though_forked_children_live_on(end):
    last = {
        "killed": "time.sleep(60)",
        "returns": "",
        "raises": "raise SystemExit(3)",
        "exits at once": "os._exit(0)",
    }[end]
    parent = subprocess.Popen([sys.executable, "-c", PARENT.replace("END", last)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    before, after, child = map(int, parent.stdout.readline().split())
    try:
        if end == "killed":
            assert not gone(child)
            parent.kill()
        parent.wait(10)
        assert until(lambda: gone(child))
        assert not gone(before)
        assert not gone(after)
    finally:
        parent.stdout.close()
        for pid in (before, after):
            os.kill(pid, signal.SIGKILL)


def test_stop_ends_it_also_when_it_is_frozen(manager):
    os.kill(manager.process.pid, signal.SIGSTOP)
    manager.stop()
    assert manager.process.poll() is not None


def test_a_host_that_is_not_ours_is_an_error_that_says_what_to_do():
    with pytest.raises(ServiceError, match="LBBSP_MANAGER"):
        embedded.start("192.0.2.7")


def test_a_child_that_says_nothing_is_given_up(monkeypatch):
    with pytest.raises(ServiceError, match="no answer"):
        embedded.start(timeout_s=0.0)


def test_it_starts_from_a_folder_with_misleading_names(tmp_path, monkeypatch):
    for name in ("lbbsp", "random", "typer", "zmq"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not me')\n")
    monkeypatch.chdir(tmp_path)
    embedded.start().stop()


def test_a_metrics_port_that_another_job_has_costs_no_job_its_manager(monkeypatch):
    monkeypatch.setenv("LBBSP_MANAGER_METRICS", "127.0.0.1:29551")
    first, second = embedded.start(), embedded.start()
    try:
        for one in (first, second):
            client = Client(one.address, HELLO, curve=one.curve)
            assert welcomed(client, 10)
            client.close()
    finally:
        first.stop()
        second.stop()
