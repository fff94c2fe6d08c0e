"""What a peer makes a manager hold and write stays bounded: a message that never ends, a log that never stops."""

import logging
import socket
import time

import psutil
import pytest
from harness import ManagerProcess, Ranks, until
from test_security_floods import shake_hands

from lbbsp.service.logs import BURST_LINES, LINES_PER_S, Throttle
from lbbsp.service.memory import NOT_AGAIN_S, MemoryGuard, resident_mib

LIMIT_MIB = 200
PART = b"\x03" + (8_000).to_bytes(8) + bytes(8_000)
"""A long frame that says that more will follow."""


def record(at_s: float, text: str = "line %d") -> logging.LogRecord:
    made = logging.LogRecord("lbbsp", logging.INFO, "", 0, text, (7,), None)
    made.created = at_s
    return made


def test_a_message_that_never_ends_costs_its_peer_the_line_and_the_job_goes_on(tmp_path):
    manager = ManagerProcess(tmp_path / "log", options=["--max-memory-mib", str(LIMIT_MIB)])
    job = Ranks(manager.address, "real").join()
    for _ in range(5):
        job.step()
    endless = shake_hands(manager.address)
    with pytest.raises(OSError, match=r"reset|Broken pipe"):
        pour(endless)
    assert "all connections are closed" in manager.log()
    start = job.iteration

    def go_on() -> None:
        for rank, client in enumerate(job.clients):
            client.report(job.report(rank))
        job.pump()
        job.iteration += 1

    until(lambda: job.clients[0].plan().based_on_iteration > start, "plans again", go_on)
    process = psutil.Process(manager.process.pid)
    until(lambda: process.memory_info().rss / 2**20 < LIMIT_MIB, "memory given back")
    assert manager.process.poll() is None
    job.close()
    endless.close()
    manager.stop()


def pour(line: socket.socket) -> None:
    until_s = time.perf_counter() + 30
    while time.perf_counter() < until_s:
        for _ in range(20):
            line.sendall(PART)
        time.sleep(0.001)


def test_where_hanging_up_does_not_help_it_is_not_done_again_at_once():
    hung_up = []
    guard = MemoryGuard(100.0, lambda: hung_up.append(1), lambda: 150.0)
    assert [guard.look(float(second)) for second in range(int(NOT_AGAIN_S))].count(True) == 1
    assert guard.look(NOT_AGAIN_S + 1)
    assert len(hung_up) == 2


def test_below_the_limit_nobody_is_hung_up_on():
    guard = MemoryGuard(100.0, pytest.fail, lambda: 100.0)
    assert not guard.look(0.0)
    assert 10 < resident_mib() < 10_000


def test_a_flood_of_lines_is_cut_short_and_counted():
    throttle = Throttle()
    passed = sum(throttle.filter(record(100.0)) for _ in range(5_000))
    assert passed == BURST_LINES
    later = record(101.0)
    assert throttle.filter(later)
    assert later.getMessage() == f"line 7 ({5_000 - passed:.0f} lines before this were too many)"
    assert sum(throttle.filter(record(101.0)) for _ in range(500)) == LINES_PER_S - 1
    assert all(throttle.filter(record(200.0 + second)) for second in range(100))


def test_a_percent_sign_in_a_line_after_a_flood_is_only_that():
    throttle = Throttle()
    for _ in range(2_000):
        throttle.filter(record(1.0))
    late = record(2.0, "100 %% of %d")
    assert throttle.filter(late)
    assert late.getMessage().startswith("100 % of 7 (")
