"""The manager's process: jobs side by side, signals, ports, kills, restarts, silence, its log. Real processes."""

import logging
import os
import signal
import subprocess
import sys
import time

import pytest
from harness import ManagerProcess, Ranks, until


def command(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lbbsp", *options], capture_output=True, text=True, timeout=30, check=False
    )


def test_a_job_gets_a_plan_an_iteration_that_follows_the_speeds(ranks):
    job = ranks().join()
    plans = [job.step() for _ in range(30)]
    assert [plan.based_on_iteration for plan in plans] == list(range(30))
    assert all(sum(plan.sizes) == 90 for plan in plans)
    assert abs(plans[-1].sizes[1] - 60) <= 3


def test_jobs_side_by_side_do_not_touch_one_another(ranks):
    one, other = ranks(" one").join(), ranks(" other", (3000.0, 1000.0, 1000.0)).join()
    for _ in range(25):
        one_plan, other_plan = one.step(), other.step()
    assert abs(one_plan.sizes[1] - 60) <= 3
    assert abs(other_plan.sizes[0] - 54) <= 3


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="this system has no batch policy")
def test_it_interrupts_nobody_while_its_jobs_tell_of_several_iterations_at_once(manager):
    job = Ranks(manager.address, "j").join()
    for number, policy in ((1, os.SCHED_OTHER), (8, os.SCHED_BATCH), (1, os.SCHED_OTHER), (8, os.SCHED_BATCH)):
        job.iteration += number
        for rank in (1, 0):
            job.clients[rank].report(job.report(rank, iterations=number, together=8))
        until(job._planned, "a plan", job.pump)
        until(lambda wanted=policy: os.sched_getscheduler(manager.process.pid) == wanted, f"policy {policy}", job.pump)
    job.close()


def test_only_rank_0_gets_plans(ranks):
    job = ranks().join()
    for _ in range(5):
        job.step()
    assert job.clients[1].plan() is None


def test_observing_jobs_keep_the_equal_split(ranks):
    job = ranks(mode="observe").join()
    assert {job.step().sizes for _ in range(20)} == {(45, 45)}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_with_a_line(manager, number):
    job = Ranks(manager.address, "j").join()
    job.step()
    assert manager.stop(number) == 0
    assert f"stopped by {number.name}" in manager.log()
    assert "Traceback" not in manager.log()
    job.close()


def test_a_taken_port_is_one_plain_line(shared_manager):
    port = shared_manager.address.rpartition(":")[2]
    done = command("manager", "--bind", f"tcp://127.0.0.1:{port}")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "the port is taken" in done.stderr


@pytest.mark.parametrize(
    ("bind", "word"),
    [
        ("tcp://192.0.2.7:5551", "--insecure"),
        ("tcp://*:0", "--insecure"),
        ("nonsense", "--insecure"),
        ("tcp://127.0.0.1", "tcp://HOST:PORT"),
        ("tcp://127.0.0.1:what", "tcp://HOST:PORT"),
    ],
)
def test_an_address_that_cannot_be_served_is_one_plain_line(bind, word):
    done = command("manager", "--bind", bind)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert word in done.stderr


def test_an_address_of_another_machine_is_one_plain_line():
    done = command("manager", "--bind", "tcp://192.0.2.7:5551", "--insecure")
    assert done.returncode == 1
    assert "no interface of this machine" in done.stderr


def test_killed_and_restarted_it_learns_its_jobs_and_sizes_adapt_again(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="lbbsp.worker.client")
    manager = ManagerProcess(tmp_path / "log")
    job = Ranks(manager.address, "j").join()
    for _ in range(20):
        job.step()
    manager.stop(signal.SIGKILL)
    until(lambda: job.clients[0].away, "away", job.pump)
    for client in job.clients:
        client.report(job.report(0))
    job.iteration += 1
    job.speeds = (2000.0, 1000.0)
    again = ManagerProcess(tmp_path / "log", port=int(manager.address.rpartition(":")[2]))
    job.join()
    for _ in range(30):
        plan = job.step()
    assert abs(plan.sizes[0] - 60) <= 3
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert ["is away" in said[0], "is back" in said[1], len(said)] == [True, True, 2]
    job.close()
    again.stop()


def test_a_restart_between_two_reports_is_noticed_by_the_answer_to_the_next(tmp_path):
    manager = ManagerProcess(tmp_path / "log")
    job = Ranks(manager.address, "j").join()
    for _ in range(5):
        job.step()
    manager.stop(signal.SIGKILL)
    again = ManagerProcess(tmp_path / "log", port=int(manager.address.rpartition(":")[2]))

    def go_on() -> None:
        for rank, client in enumerate(job.clients):
            client.report(job.report(rank))
        job.pump()
        job.iteration += 1

    start = job.iteration
    until(lambda: job.clients[0].plan().based_on_iteration >= start, "a plan of the new manager", go_on)
    job.close()
    again.stop()


def test_a_manager_that_answers_seconds_late_blocks_nobody_and_is_taken_up_again(manager):
    job = Ranks(manager.address, "j").join()
    for _ in range(5):
        job.step()
    manager.send(signal.SIGSTOP)
    for _ in range(50):  # one that waited for an answer would wait for ever
        for rank, client in enumerate(job.clients):
            client.report(job.report(rank))
        job.iteration += 1
        time.sleep(0.01)
    manager.send(signal.SIGCONT)
    newest = job.iteration - 1
    until(lambda: job.clients[0].plan().based_on_iteration == newest, "late plans", job.pump)
    job.step()
    job.close()


def test_a_rank_that_falls_silent_is_named_and_its_return_too(tmp_path):
    manager = ManagerProcess(tmp_path / "log", constants={"lbbsp.service.silence.AT_LEAST_S": 4.0})
    job = Ranks(manager.address, "j").join()
    for _ in range(5):
        job.step()
    job.clients[0].report(job.report(0))
    until(lambda: "rank 1 is silent" in manager.log(), "named", job.pump)
    assert "rank 0 is silent" not in manager.log()
    job.clients[1].report(job.report(1))
    until(lambda: "rank 1 reports again" in manager.log(), "back", job.pump)
    job.close()
    manager.stop()


def test_a_job_ends_when_all_ranks_say_bye(manager):
    job = Ranks(manager.address, "over").join()
    job.step()
    job.close()
    until(lambda: "job 'over' has ended" in manager.log(), "the end")
