"""A manager with a journal, killed and started again: it goes on from what it had learnt. Real processes."""

import signal
import subprocess
import sys
import time

from harness import ManagerProcess, Ranks, until

from lbbsp.service.keeper import VERSIONS


def options(tmp_path) -> list[str]:
    return ["--journal", str(tmp_path / "journal")]


def start(tmp_path, port: str = "0") -> ManagerProcess:
    return ManagerProcess(tmp_path / "log", int(port), options(tmp_path))


def again(manager: ManagerProcess, tmp_path, number: int = signal.SIGKILL) -> ManagerProcess:
    """Ended by a signal and started once more at the same port."""
    manager.stop(number)
    return start(tmp_path, manager.address.rpartition(":")[2])


def kept(manager: ManagerProcess, job: Ranks, tmp_path) -> None:
    """Until the journal has grown by one more snapshot."""
    before = (tmp_path / "journal").stat().st_size

    def grown() -> bool:
        job.step()
        return (tmp_path / "journal").stat().st_size > before

    until(grown, "a snapshot")


def first_plan(job: Ranks):
    """Ranks of equal size report until a manager that was restarted sends its first plan."""
    start, job.sizes = job.iteration, [45, 45]

    def go_on() -> None:
        for rank, client in enumerate(job.clients):
            client.report(job.report(rank))
        job.pump()
        job.iteration += 1
        time.sleep(0.01)

    until(lambda: (plan := job.clients[0].plan()) and plan.based_on_iteration >= start, "a plan", go_on)
    return job.clients[0].plan()


def test_after_kill_9_the_first_plan_is_balanced_and_newer_than_all_before(tmp_path):
    manager = start(tmp_path)
    job = Ranks(manager.address, "j", (1000.0, 4000.0)).join()
    for _ in range(20):
        last = job.step()
    kept(manager, job, tmp_path)
    manager = again(manager, tmp_path)
    plan = first_plan(job)
    assert plan.version > last.version
    assert plan.version > VERSIONS
    assert abs(plan.sizes[0] - 18) <= 2
    assert "goes on from what it had learnt" in manager.log()
    job.close()
    manager.stop()


def test_after_sigterm_it_knows_the_very_last_plan(tmp_path):
    manager = start(tmp_path)
    job = Ranks(manager.address, "j", (1000.0, 4000.0)).join()
    for _ in range(20):
        job.step()
    manager = again(manager, tmp_path, signal.SIGTERM)
    assert "1 jobs are remembered" in manager.log()
    assert abs(first_plan(job).sizes[0] - 18) <= 2
    job.close()
    manager.stop()


def trains_on(job):
    """A rank that knows nothing of a newer incarnation reports, as ever."""
    job.clients[0].report(job.report(0))
    job.pump()


def test_a_new_incarnation_after_a_kill_inherits_and_the_one_before_is_refused(tmp_path):
    manager = start(tmp_path)
    job = Ranks(manager.address, "j", (1000.0, 4000.0)).join()
    for _ in range(20):
        job.step()
    kept(manager, job, tmp_path)
    manager = again(manager, tmp_path)
    newer = Ranks(manager.address, "j", (1000.0, 4000.0), incarnation="second").join()
    assert abs(newer.step().sizes[0] - 18) <= 2
    until(lambda: job.clients[0].refused, "refused", lambda: trains_on(job))
    assert "replaced by a newer one" in job.clients[0].refused
    manager = again(manager, tmp_path)
    first_plan(newer)
    job.clients[0].hello_again(job.hello(0))
    until(lambda: job.clients[0].refused, "refused by the next manager too", job.pump)
    newer.close()
    job.close()
    manager.stop()


def test_a_foreign_a_newer_or_a_used_journal_is_one_plain_line(tmp_path):
    manager = start(tmp_path)
    foreign, newer = tmp_path / "foreign", tmp_path / "newer"
    foreign.write_text("shopping list\n")
    newer.write_bytes(b"lbbsp journal 9\nwhatever")
    for path, word in ((foreign, "is no journal"), (newer, "format 9"), (tmp_path / "journal", "another manager")):
        before = path.read_bytes()
        done = subprocess.run(
            [sys.executable, "-m", "lbbsp", "manager", "--bind", "tcp://127.0.0.1:0", "--journal", str(path)],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert word in done.stderr
        assert str(path) in done.stderr
        assert path.read_bytes() == before
    manager.stop()


def test_a_job_that_ended_long_ago_is_not_recalled(tmp_path):
    manager = ManagerProcess(tmp_path / "log", 0, [*options(tmp_path), "--forget-after-s", "0.5"])
    job = Ranks(manager.address, "j").join()
    job.step()
    manager.stop(signal.SIGTERM)
    time.sleep(0.6)
    manager = ManagerProcess(tmp_path / "log", 0, [*options(tmp_path), "--forget-after-s", "0.5"])
    assert "0 jobs are remembered" in manager.log()
    manager.stop()
    job.close()
