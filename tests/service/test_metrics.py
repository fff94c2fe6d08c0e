"""Metrics say what stats say, are bounded, and never in the way; health and readiness tell the truth."""

import math
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest
from harness import ManagerProcess, Ranks, until
from prometheus_client.parser import text_string_to_metric_families

from lbbsp.protocol import Look
from lbbsp.service import figures as figures_module
from lbbsp.service.desk import Desk
from lbbsp.service.figures import figures
from lbbsp.service.job import sizer_maker
from lbbsp.service.latency import BOUNDS_S, Latency
from lbbsp.service.rejections import Rejections
from lbbsp.service.table import JobTable
from lbbsp.top.asking import Asker

PER_RANK = ("lbbsp_rank_batch_samples", "lbbsp_rank_own_seconds", "lbbsp_rank_wait_seconds", "lbbsp_rank_slow")


class Watched(ManagerProcess):
    """A manager with a port for metrics."""

    def __init__(self, log, options=()) -> None:
        constants = {"lbbsp.service.metrics_http._Handler.timeout": 1.0}
        super().__init__(log, options=["--metrics", "127.0.0.1:0", *options], constants=constants)
        until(lambda: "metrics on" in self.log(), "metrics")
        self.url = self.log().rpartition("metrics on ")[2].split("\n")[0].removesuffix("/metrics")

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def samples(self) -> dict[tuple[str, ...], float]:
        """Values by name and labels."""
        status, text = self.get("/metrics")
        assert status == 200
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    process = Watched(tmp_path_factory.mktemp("manager") / "log")
    yield process
    process.stop()


def test_metrics_say_what_a_look_says(watched):
    job = Ranks(watched.address, 'a "job"\\', (1000.0, 2000.0)).join()
    for _ in range(30):
        job.step()
    asker = Asker(watched.address)
    seen = asker.ask(Look(job=job.ids["job"]))
    asker.close()
    until(lambda: watched.samples()["lbbsp_job_iteration", job.ids["job"]] == 29, "the newest figures")
    samples = watched.samples()
    of_job = {key[0]: value for key, value in samples.items() if key[1:] == (job.ids["job"],)}
    assert of_job["lbbsp_iteration_seconds"] == seen.iteration_time_s
    assert of_job["lbbsp_wait_share"] == seen.wait_share
    assert of_job["lbbsp_lag_iterations"] == seen.lag
    assert of_job["lbbsp_forecast_error_share"] == pytest.approx(seen.forecast_error_percent / 100)
    assert of_job["lbbsp_plan_changes_total"] == seen.plan_changes > 0
    assert of_job["lbbsp_job_ranks"] == 2
    assert samples["lbbsp_predictor", job.ids["job"], seen.predictor] == 1
    assert samples["lbbsp_mode", job.ids["job"], seen.mode] == 1
    for rank in range(2):
        assert samples["lbbsp_rank_batch_samples", job.ids["job"], str(rank)] == seen.sizes[rank]
        assert samples["lbbsp_rank_own_seconds", job.ids["job"], str(rank)] == seen.own_time_s[rank]
        assert samples["lbbsp_rank_slow", job.ids["job"], str(rank)] == 0
    assert samples["lbbsp_jobs", "running"] == 1
    job.close()


def test_every_plan_is_counted_with_its_time(watched):
    job = Ranks(watched.address, "timed").join()
    before = watched.samples()["lbbsp_decision_seconds_count",]
    for _ in range(20):
        job.step()
    until(lambda: watched.samples()["lbbsp_decision_seconds_count",] == before + 20, "the newest figures")
    samples = watched.samples()
    assert samples["lbbsp_decision_seconds_sum",] > 0
    bounds = [samples["lbbsp_decision_seconds_bucket", str(bound)] for bound in BOUNDS_S]
    assert bounds == sorted(bounds)
    job.close()


def test_rejected_messages_are_counted_by_kind_and_never_fall(watched):
    job = Ranks(watched.address, "rejected").join()
    job.step()
    for _ in range(5):
        job.clients[0].report(job.report(0, 0))
        job.clients[0].socket.send(b"\xc1")
    until(lambda: watched.samples().get(("lbbsp_rejected_messages_total", "malformed")) == 5, "the count")
    kinds = {key[1]: value for key, value in watched.samples().items() if key[0] == "lbbsp_rejected_messages_total"}
    assert sum(kinds.values()) == 10
    job.close()
    until(lambda: watched.samples()["lbbsp_jobs", "running"] == 0, "the job's end")
    assert watched.samples()["lbbsp_rejected_messages_total", "malformed"] == 5


def test_a_job_that_has_ended_leaves_no_series(watched):
    job = Ranks(watched.address, "short").join()
    job.step()
    until(lambda: any("short" in key for key in watched.samples()), "its series")
    job.close()
    until(lambda: not any("short" in key for key in watched.samples()), "their end")


def test_a_manager_is_ready_and_healthy_and_says_what_paths_there_are(watched):
    assert watched.get("/ready") == (200, "ok\n")
    assert watched.get("/health") == (200, "ok\n")
    status, text = watched.get("/nonsense")
    assert (status, "/metrics" in text) == (404, True)


def test_a_stopped_manager_answers_no_probe_and_recovers(tmp_path):
    manager = Watched(tmp_path / "log")
    assert manager.get("/ready")[0] == 200
    manager.send(signal.SIGSTOP)
    with pytest.raises(OSError, match="timed out"):
        urllib.request.urlopen(manager.url + "/ready", timeout=0.5)
    manager.send(signal.SIGCONT)
    until(lambda: manager.get("/ready")[0] == 200, "recovery")
    manager.stop()


def test_slow_callers_of_the_port_hold_up_no_job_and_no_other_caller_for_long(watched):
    host, port = watched.url.removeprefix("http://").split(":")
    slow = [socket.create_connection((host, int(port))) for _ in range(20)]
    for line in slow:
        line.sendall(b"GET /metrics HTT")
    job = Ranks(watched.address, "beside").join()
    for _ in range(20):
        job.step()

    def answered() -> bool:
        try:
            return watched.get("/health")[0] == 200
        except OSError:
            return False

    until(answered, "room for others")
    for line in slow:
        line.close()
    job.close()


@pytest.mark.parametrize("place", ["nonsense", "127.0.0.1", "127.0.0.1:x", ":1", "127.0.0.1:70000"])
def test_a_place_that_is_none_is_one_plain_line(place):
    command = [sys.executable, "-m", "lbbsp", "manager", "--bind", "tcp://127.0.0.1:0", "--metrics", place]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "HOST:PORT" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_taken_place_is_one_plain_line(watched):
    place = watched.url.removeprefix("http://")
    command = [sys.executable, "-m", "lbbsp", "manager", "--bind", "tcp://127.0.0.1:0", "--metrics", place]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, place in done.stderr, done.stderr.count("\n")) == (1, True, 1)


def test_without_prometheus_client_it_says_what_to_install(tmp_path):
    (tmp_path / "prometheus_client").mkdir()
    (tmp_path / "prometheus_client" / "__init__.py").write_text("raise ImportError('not here')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from lbbsp.cli import main; main()"
    command = [sys.executable, "-c", code, "manager", "--bind", "tcp://127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "pip install 'lbbsp[metrics]'" in done.stderr


def test_jobs_and_ranks_shown_are_bounded(monkeypatch):
    from table_ranks import hello, peer_of, say  # the table's own greetings

    monkeypatch.setattr(figures_module, "MOST_JOBS", 3)
    monkeypatch.setattr(figures_module, "MOST_RANKS", 7)
    table = JobTable(sizer_maker("last"))
    for job in "abcde":
        for rank in range(3):
            say(table, hello(rank, job=job), peer_of(rank))
    shown = figures(table, Latency(), 0)
    assert [job.name for job in shown.jobs] == ["a", "b", "c"]
    assert [job.each is not None for job in shown.jobs] == [True, True, False]
    assert shown.running == 5


def test_a_histogram_puts_each_time_where_it_belongs():
    latency = Latency()
    for bound in BOUNDS_S:
        latency.add(bound)
        latency.add(math.nextafter(bound, 9))
    assert latency.counts == [1] + [2] * (len(BOUNDS_S) - 1) + [1]


def test_counts_by_kind_outlive_jobs():
    rejections = Rejections()
    rejections.add("j", "stale", "x")
    rejections.forget("j")
    rejections.add("k", "stale", "x")
    assert rejections.total() == {"stale": 2}


def test_nobody_waits_for_an_answer_that_does_not_come_and_a_late_one_serves_no_later_question():
    numbers = iter(range(10))
    desk = Desk(lambda: next(numbers), kept_s=0.0)
    assert desk.ask(0.05) is None
    desk.answer()
    answerer = threading.Thread(target=lambda: (desk.bell.recv(1), desk._answers.put(next(numbers))))
    answerer.start()
    assert desk.ask(5.0) == 1
    answerer.join()
    desk.close()
    assert desk.ask(0.05) is None


def test_a_fault_in_the_answer_is_logged_once_and_ends_nothing(caplog):
    desk = Desk(lambda: 1 // 0)
    for _ in range(3):
        desk._ring.send(b"?")
        desk.answer()
    assert desk.faults == 3
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
    desk.close()
