"""`lbbsp manager --record`: real managers, killed, short of disk, restarted; files that pandas and polars open."""

import gzip
import logging
import resource
import signal
import time
from pathlib import Path

import numpy as np
import pandas
import polars
import pytest
from harness import ManagerProcess, Ranks, until
from typer.testing import CliRunner

from lbbsp.cli import build
from lbbsp.errors import ConfigError
from lbbsp.protocol import Report
from lbbsp.recording import NO_SENSORS, PHASES, read
from lbbsp.service.record import RecordOptions
from lbbsp.service.record_files import Files, Tape
from lbbsp.service.record_rows import AVERAGED, FIRST, Rows
from lbbsp.worker.sensors import machine_sources

SENSORS = ("running", "cpu_busy_share")
QUICK = {"lbbsp.service.record.EVERY_S": 0.1}
MOMENTARY = {"running", "load_1min", "memory_used_share", "memory_available_gib"}


@pytest.fixture
def recorded(tmp_path):
    """Starts managers that record into one folder."""
    started = []

    def start(*options: str) -> ManagerProcess:
        folder = str(tmp_path / "recordings")
        started.append(ManagerProcess(tmp_path / "manager.log", 0, ["--record", folder, *options], QUICK))
        return started[-1]

    yield start
    for manager in started:
        manager.stop()


def files(tmp_path: Path, ending: str = "csv.gz") -> list[Path]:
    return sorted((tmp_path / "recordings").glob(f"*.{ending}"))


def play(job: Ranks, iterations: int, sensors=lambda rank, iteration: (rank, iteration)) -> None:
    """So many iterations with sensors, each with its plan."""
    for _ in range(iterations):
        for rank in range(len(job.speeds)):
            job.clients[rank].report(job.report(rank, sensors=sensors(rank, job.iteration)))
        until(job._planned, f"the plan of iteration {job.iteration}", job.pump)
        job.iteration += 1


def rows(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def on_disk(tmp_path: Path, iterations: int) -> bool:
    return bool(files(tmp_path)) and any(f",{iterations - 1}," in row for row in rows(files(tmp_path)[-1])[-4:])


def test_pandas_polars_and_compare_open_what_a_manager_recorded(recorded, tmp_path):
    job = Ranks(recorded().address, "j", sensors=SENSORS).join()
    play(job, 40)
    until(lambda: on_disk(tmp_path, 40), "the recording", job.pump)
    (path,) = files(tmp_path)
    by_pandas, by_polars = pandas.read_csv(path), polars.read_csv(path)
    assert list(by_pandas.columns) == by_polars.columns == [*FIRST, "running", "over_cpu_busy_share"]
    assert len(by_pandas) == len(by_polars) == 80
    assert by_pandas["start_s"].between(time.time() - 60, time.time()).all()
    run = CliRunner().invoke(build(["compare"]), ["compare", str(path), "--predictors", "last"])
    assert run.exit_code == 0, run.output
    job.close()


def test_readings_of_a_moment_stand_where_they_were_known_and_averages_where_they_belong(recorded, tmp_path):
    job = Ranks(recorded().address, "j", sensors=SENSORS).join()
    play(job, 10, lambda rank, iteration: (iteration, 100 + iteration))
    until(lambda: on_disk(tmp_path, 10), "the recording", job.pump)
    recording = read(files(tmp_path)[0])
    assert recording.sensor_names == ("running", "over_cpu_busy_share")
    for column, sent in enumerate((np.arange(9), 100 + np.arange(9))):
        np.testing.assert_array_equal(recording.sent()[:9, :, column], np.stack((sent, sent), axis=1))
    job.close()


def test_a_kill_loses_at_most_the_last_second(recorded, tmp_path):
    manager = recorded()
    job = Ranks(manager.address, "j", sensors=SENSORS).join()
    stamps = []
    end_s = time.perf_counter() + 2.0
    while time.perf_counter() < end_s:
        play(job, 1)
        stamps.append(time.perf_counter())
        time.sleep(0.01)
    manager.stop(signal.SIGKILL)
    safe = sum(stamp <= time.perf_counter() - 1.1 for stamp in stamps)
    (path,) = files(tmp_path)
    assert safe > 20
    assert len(read(path).own_time_s) >= safe
    assert len(pandas.read_csv(path)) >= 2 * safe
    job.close()


def test_a_torn_last_member_costs_that_member_only(tmp_path, caplog):
    members = [
        gzip.compress(text.encode()) for text in ("worker,iteration,samples,own_time_s\n", "0,0,9,1\n", "0,1,9,1\n")
    ]
    path = tmp_path / "job.csv.gz"
    path.write_bytes(b"".join(members)[:-5])
    with caplog.at_level(logging.WARNING):
        assert len(read(path).own_time_s) >= 1
    assert "read up to there" in caplog.text


def test_a_restarted_manager_begins_a_new_file_and_each_can_be_read(recorded, tmp_path):
    for _ in range(2):
        manager = recorded()
        job = Ranks(manager.address, "same/../name ü", sensors=SENSORS).join()
        play(job, 5)
        until(lambda: on_disk(tmp_path, 5), "the recording", job.pump)
        manager.stop(signal.SIGTERM)
        job.close()
    assert len(files(tmp_path)) == 2
    assert {len(read(path).own_time_s) for path in files(tmp_path)} == {5}


def test_a_job_that_starts_anew_gets_a_file_of_its_own(recorded, tmp_path):
    manager = recorded()
    for incarnation in ("first", "second"):
        job = Ranks(manager.address, "j", sensors=SENSORS, incarnation=incarnation).join()
        play(job, 5)
        until(lambda: on_disk(tmp_path, 5), "the recording", job.pump)
        job.close()
    until(lambda: len(files(tmp_path)) == 2, "two files")


def test_sigterm_loses_nothing(recorded, tmp_path):
    manager = recorded()
    job = Ranks(manager.address, "j").join()
    for _ in range(30):
        job.step()
    assert manager.stop(signal.SIGTERM) == 0
    assert len(read(files(tmp_path)[0]).own_time_s) == 30
    job.close()


def test_a_folder_that_cannot_be_made_stops_no_plan_and_is_said_once(tmp_path):
    (tmp_path / "taken").write_text("a file")
    manager = ManagerProcess(tmp_path / "log", 0, ["--record", str(tmp_path / "taken/below")], QUICK)
    job = Ranks(manager.address, "j").join()
    until(lambda: "rows are lost" in manager.log(), "the trouble told", job.step)
    for _ in range(100):
        job.step()
    assert manager.stop(signal.SIGTERM) == 0
    assert manager.log().count("rows are lost") == 1
    assert f"0 rows written, {2 * job.iteration} lost" in manager.log()
    job.close()


def test_a_full_disk_stops_no_plan_and_recording_goes_on_when_there_is_room(recorded, tmp_path):
    manager = recorded()
    job = Ranks(manager.address, "j", sensors=tuple(f"s{number}" for number in range(64))).join()
    random = np.random.default_rng(0)

    def noise(rank, iteration):
        return tuple(random.normal(size=64).tolist())

    resource.prlimit(manager.process.pid, resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))
    until(lambda: "rows are lost" in manager.log(), "a full disk", lambda: play(job, 5, noise))
    job.step()
    resource.prlimit(manager.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    until(lambda: "recording goes on" in manager.log(), "room again", lambda: play(job, 1, noise))
    assert manager.stop(signal.SIGTERM) == 0
    assert manager.log().count("rows are lost") == 1
    assert f",{job.iteration - 1}," in rows(files(tmp_path)[0])[-1]
    job.close()


def test_files_are_closed_at_their_size_turned_into_parquet_and_the_oldest_go(recorded, tmp_path):
    manager = recorded("--record-part-mib", "0.004", "--record-most-mib", "0.02", "--record-parquet")
    job = Ranks(manager.address, "j", sensors=SENSORS).join()
    first = tmp_path / "recordings/j.first.0001.parquet"
    until(first.exists, "Parquet of the first file", lambda: play(job, 10))
    assert pandas.read_parquet(first).columns.tolist() == polars.read_parquet(first).columns
    assert len(read(first).own_time_s) > 10
    until(lambda: not first.exists(), "the oldest gone", lambda: play(job, 10))
    kept = sum(path.stat().st_size for path in (tmp_path / "recordings").iterdir())
    assert kept < 1.5 * 0.02 * 2**20
    job.close()


def test_a_slow_disk_loses_rows_and_stops_nobody(tmp_path, caplog):
    recordings = Files(tmp_path, 1.0, 10.0, parquet=False)
    tape = Tape("j", "i", "worker\n")
    for _ in range(20_000):
        recordings.write(tape, ["1"] * 5)
    recordings.close(tape)
    until(lambda: recordings.lost + recordings.written == 100_000, "all rows accounted for")
    recordings.end()
    assert len(rows(next(tmp_path.iterdir()))) == recordings.written + 1


def test_each_sensor_of_the_machine_is_of_a_moment_or_an_average():
    names = {name for source in machine_sources() for name in source.names}
    assert names <= MOMENTARY | AVERAGED
    assert not MOMENTARY & AVERAGED


def test_a_rank_that_missed_an_iteration_has_no_reading_at_its_start():
    made = Rows(("running",))
    for iteration in (0, 2, 3):
        report = Report(job="j", incarnation="i", rank=0, iteration=iteration, samples=1, own_time_s=1.0)
        made.add(report, (float(iteration),), 10.0)
    assert [line.rpartition(",")[2] for line in made.taken()] == ["", "", "2"]
    assert made.taken() == []


def test_a_report_that_was_held_back_has_the_start_that_it_would_have_had():
    starts = []
    for held_s in (0.0, 0.25):
        made = Rows(())
        ids = {"job": "j", "incarnation": "i", "rank": 0}
        made.add(Report(**ids, iteration=1, samples=1, own_time_s=1.0, held_s=held_s), (), 10.0 + held_s)
        starts.append(made.taken()[0].split(",")[2])
    assert starts[0] == starts[1]


def test_where_own_time_went_is_recorded_where_it_was_told():
    made = Rows(("running",))
    for iteration, phases_s in enumerate([(), (0.25, 0.5, 0.125), (0.25,)]):
        report = Report(
            job="j", incarnation="i", rank=0, iteration=iteration, samples=1, own_time_s=1.0, phases_s=phases_s
        )
        made.add(report, (1.0,), 10.0)
    names = made.header.strip().split(",")
    told = [dict(zip(names, line.split(","), strict=True)) for line in made.taken()]
    assert [row["forward_s"] for row in told] == ["", "0.5", ""]
    assert (told[1]["prepare_s"], told[1]["backward_s"]) == ("0.25", "0.125")
    assert not set(PHASES) & set(names) - NO_SENSORS


@pytest.mark.parametrize(("part", "most"), [(0.0, 1.0), (2.0, 1.0), (-1.0, 1.0)])
def test_sizes_that_make_no_sense_are_refused(part, most):
    with pytest.raises(ConfigError, match="MiB"):
        RecordOptions(Path("x"), part, most).check()
