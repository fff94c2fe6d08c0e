"""`lbbsp compare`: the table, the files it writes, and the figures in them."""

import json
import re

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from lbbsp.compare import command
from lbbsp.comparison import Settings, as_frame, compare
from lbbsp.errors import ConfigError

FIGURES = {"rmse_pct", "slowdown", "speedup_vs_equal", "us_per_iteration"}


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    rng = np.random.default_rng(0)
    running = 1 + (np.cumsum(rng.random((60, 3)) < 0.1, axis=0) % 2)
    lines = ["worker,iteration,samples,time_s,running"]
    for (iteration, worker), count in np.ndenumerate(running):
        lines.append(f"w{worker},{iteration},100,{0.1 * count * np.exp(rng.normal(0, 0.03)):.5f},{count}")
    path = tmp_path_factory.mktemp("recordings") / "job.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def run(*arguments):
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "160"})


def test_the_table_holds_predictors_and_what_they_are_measured_by(recording):
    result = run(recording, "--predictors", "last ema:alpha=0.3 narx", "--train-steps", 1)
    assert result.exit_code == 0, result.output
    for name in ("equal", "static", "clairvoyant", "last", "alpha=0.3", "narx"):
        assert name in result.output


def test_the_files_it_writes(recording, tmp_path):
    result = run(
        recording,
        "--predictors",
        "last arx",
        "--noise",
        "0,40",
        "--json",
        tmp_path / "a.json",
        "--plot",
        tmp_path / "a.png",
    )
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "a.json").read_text())["job.csv"]
    assert set(rows) == {"equal", "static", "clairvoyant", "last", "arx"}
    assert all(set(row) == FIGURES for row in rows.values())
    assert rows["equal"]["speedup_vs_equal"] == rows["clairvoyant"]["slowdown"] == 1
    assert rows["equal"]["rmse_pct"] is None
    assert rows["arx"]["slowdown"] < rows["last"]["slowdown"] < rows["equal"]["slowdown"]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert re.search(r"40 .*1\.\d{3}", result.output)


def test_from_python_it_is_a_data_frame(recording):
    frame = as_frame(compare([recording], Settings(predictors=("last",))))
    assert frame.loc[("job.csv", "equal"), "speedup_vs_equal"] == 1
    assert frame.loc[("job.csv", "last"), "rmse_pct"] > 0


def test_a_replay_repeats(recording):
    one, other = (compare([recording], Settings(predictors=("narx", "auto")))[0].rows for _ in range(2))
    for name, row in one.items():
        assert row.slowdown == other[name].slowdown
        np.testing.assert_equal(row.rmse_pct, other[name].rmse_pct)


def test_tuning_chooses_on_the_part_before_the_tested_one(recording):
    rows = compare([recording], Settings(predictors=("ema",), tune=True))[0].rows
    assert rows["ema"].spec in {f"ema:alpha={alpha}" for alpha in (0.5, 0.7, 0.9)}


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (Settings(predictors=("nrax",)), "unknown predictor 'nrax'"),
        (Settings(tested_from=1.0), "tested part"),
        (Settings(lookahead=-1), "negative"),
    ],
)
def test_settings_that_cannot_be_met_are_named(recording, settings, wanted):
    with pytest.raises(ConfigError, match=wanted):
        compare([recording], settings)


def test_noise_that_is_no_list_of_numbers_is_named(recording):
    assert isinstance(run(recording, "--noise", "5;10").exception, ConfigError)


def test_a_picture_of_an_unknown_kind_is_named(recording, tmp_path):
    result = run(recording, "--predictors", "last", "--plot", tmp_path / "a.xyz")
    assert isinstance(result.exception, ConfigError)


def test_claims_get_a_row_that_lies_between_the_plans_and_the_best(recording):
    rows = compare([recording], Settings(predictors=("last",), claims=True, tested_from=0.6))[0].rows
    assert 1.0 <= rows["claims"].slowdown < rows["last"].slowdown
    assert rows["claims"].spec == "claims:last"
    result = run(recording, "--predictors", "last", "--claims")
    assert result.exit_code == 0, result.output
    assert "claims" in result.output
