"""A recording that is cut short, has gaps or is none: read rightly, or refused with what is wrong and where."""

import gzip
import logging

import numpy as np
import pytest

from lbbsp.errors import ConfigError
from lbbsp.recording import read

HEADER = "worker,iteration,samples,time_s,load\n"
ROWS = ["a,0,100,0.5,1", "b,0,50,0.5,2", "a,1,100,0.25,3", "b,1,50,1.0,4", "a,2,100,0.5,5", "b,2,50,0.5,6"]


@pytest.fixture
def write(tmp_path):
    def write(text, name="job.csv"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def table(rows=ROWS, header=HEADER):
    return header + "\n".join(rows) + "\n"


def test_rows_become_arrays_of_iterations_and_workers(write):
    recording = read(write(table()))
    assert recording.workers == ("a", "b")
    assert recording.own_time_s.tolist() == [[0.5, 0.5], [0.25, 1.0], [0.5, 0.5]]
    assert recording.sensor_names == ("load",)
    assert not recording.timed


def test_a_report_carries_what_was_known_when_the_next_iteration_started(write):
    sent = read(write(table())).sent()[:, :, 0]
    assert sent[:2].tolist() == [[3, 4], [5, 6]]
    assert np.isnan(sent[2]).all()


def test_an_average_over_an_iteration_is_known_only_at_its_end(write):
    recording = read(write(table(header=HEADER.replace("load", "over_load"))))
    assert recording.sent()[:2, :, 0].tolist() == [[1, 2], [3, 4]]
    assert np.isnan(recording.at_start[0]).all()


def test_the_order_of_rows_does_not_matter(write):
    plain, shuffled = read(write(table())), read(write(table([ROWS[i] for i in (0, 5, 3, 1, 4, 2)]), "other.csv"))
    np.testing.assert_array_equal(plain.own_time_s, shuffled.own_time_s)


def test_gaps_late_joiners_and_blanks_are_unknown(write):
    recording = read(write(table([*ROWS[:1], *ROWS[2:4], "a,2,100,,", "b,2,50,0.5,"])))
    assert np.isnan(recording.own_time_s).tolist() == [[False, True], [False, False], [True, False]]
    assert np.isnan(recording.at_start[2]).all()


@pytest.mark.parametrize("time_s", ["0", "-1", "nan", "inf"])
def test_a_time_that_is_none_is_unknown(write, time_s):
    assert np.isnan(read(write(table([*ROWS, f"a,3,100,{time_s},1"]))).own_time_s[3]).all()


def test_a_row_cut_short_at_the_end_is_dropped_and_told(write, caplog):
    with caplog.at_level(logging.WARNING):
        recording = read(write(table()[:-8]))
    assert np.isnan(recording.own_time_s[2]).tolist() == [False, True]
    assert "ends in the middle of line 7" in caplog.text


def test_a_gzip_cut_short_is_read_up_to_there(tmp_path, caplog):
    rows = [f"a,{number},100,0.{number:04d}1,{number}" for number in range(5000)]
    whole = gzip.compress(table(rows).encode())
    path = tmp_path / "job.csv.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with caplog.at_level(logging.WARNING):
        assert 100 < len(read(path).own_time_s) < 5000
    assert "read up to there" in caplog.text


def test_parquet_and_csv_say_the_same(write, tmp_path):
    pandas = pytest.importorskip("pandas")
    path = write(table([*ROWS[:3], "b,1,50,1.0,"]))
    pandas.read_csv(path).to_parquet(tmp_path / "job.parquet")
    one, other = read(path), read(tmp_path / "job.parquet")
    np.testing.assert_array_equal(one.at_start, other.at_start)
    np.testing.assert_array_equal(one.own_time_s, other.own_time_s)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "lacks the column worker, iteration, samples, own_time_s or time_s; it has none"),
        ("worker,iteration,samples,load\n", "lacks the column own_time_s or time_s"),
        (HEADER, "has no row"),
        (table([*ROWS, "a,2,100,0.5,5"]), "line 8: worker a, iteration 2 a second time"),
        (table([*ROWS, "a,3,many,0.5,5"]), "line 8, column samples: wanted a number, got 'many'"),
        (table([*ROWS, "a,,1,0.5,5"]), "without an iteration"),
        (table([*ROWS[:2], "a,1", *ROWS[3:]]), "line 4: wanted 5 columns"),
        (table([f"{row},2" for row in ROWS], HEADER[:-1] + ",recording_version\n"), "of version 2; this reads 1"),
    ],
)
def test_what_is_no_recording_is_refused_by_name(write, text, wanted):
    with pytest.raises(ConfigError, match=r"job\.csv") as refused:
        read(write(text))
    assert wanted in str(refused.value)


def test_files_that_are_not_there_or_something_else(tmp_path):
    with pytest.raises(ConfigError, match="no recording at"):
        read(tmp_path / "none.csv")
    for name in ("noise.csv", "noise.csv.gz", "noise.parquet"):
        (tmp_path / name).write_bytes(bytes(range(256)) * 10)
        with pytest.raises(ConfigError, match="noise"):
            read(tmp_path / name)
