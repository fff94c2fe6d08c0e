"""Settings: flag before environment before file before default; what is unknown or impossible is refused by name."""

import json
import subprocess
import sys

import pytest
from harness import until

from lbbsp.errors import ConfigError
from lbbsp.service.config import FIELDS, FILE, PREFIX, Config, gather

OTHER = {
    "bind": "tcp://127.0.0.1:1", "predictor": "last", "rule": "speed", "max_jobs": 7, "max_ranks": 8, "max_rate": 90,
    "log_level": "error", "log_format": "json", "insecure": True, "keys": "k", "metrics": "h:1", "on_straggler": "x",
    "detectors": "robust",
}  # fmt: skip
"""A value that is not the default."""


def as_toml(value: object) -> str:
    return json.dumps(value)


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "manager.toml"
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.parametrize("name", OTHER)
def test_a_flag_goes_before_the_environment_before_the_file_before_the_default(name, write):
    value = OTHER[name]
    file = write(f"{name} = {as_toml(value)}")
    variable = {PREFIX + name.upper(): str(value).lower() if value is True else str(value)}
    assert getattr(gather({}, {}, None), name) == getattr(Config(), name) != value
    assert getattr(gather({}, {}, file), name) == value
    assert getattr(gather({}, {FILE: file}, None), name) == value
    assert getattr(gather({}, variable, None), name) == value
    usual = getattr(Config(), name)
    assert getattr(gather({}, variable, write(f"{name} = {as_toml(usual)}")), name) == value
    assert getattr(gather({name: usual}, variable, file), name) == usual


def test_every_setting_is_a_flag():
    done = subprocess.run(
        [sys.executable, "-m", "lbbsp", "manager", "--help"],
        capture_output=True, text=True, timeout=60, check=True, env={"COLUMNS": "200", "PATH": ""},
    )  # fmt: skip
    assert [name for name in FIELDS if "--" + name.replace("_", "-") not in done.stdout] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("predictr = 'ema'", ["predictr", "did you mean predictor?"]),
        ("[manager]\nbind = 'x'", ["manager", "known"]),
        ("max_jobs = 'many'", ["max_jobs", "many"]),
        ("max_jobs = 0", ["max_jobs", "0", ">= 1"]),
        ("max_jobs = 1.5", ["max_jobs"]),
        ("log_level = 'loud'", ["log_level", "loud"]),
        ("insecure = 'yes'", ["insecure", "yes"]),
        ("bind = ", ["no TOML"]),
    ],
)
def test_a_file_that_says_nonsense_is_refused_by_name(text, words, write):
    file = write(text)
    with pytest.raises(ConfigError) as told:
        gather({}, {}, file)
    assert all(word in str(told.value) for word in [*words, "manager.toml"])


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("LBBSP_MANAGER_PREDICTR", "ema", ["LBBSP_MANAGER_PREDICTOR"]),
        ("LBBSP_MANAGER_MAX_JOBS", "many", ["LBBSP_MANAGER_MAX_JOBS", "many"]),
        ("LBBSP_MANAGER_XYZZY", "1", ["known"]),
        (FILE, "nowhere.toml", ["nowhere.toml"]),
    ],
)
def test_an_environment_that_says_nonsense_is_refused_by_name(variable, value, words):
    with pytest.raises(ConfigError) as told:
        gather({}, {variable: value}, None)
    assert all(word in str(told.value) for word in words)


def test_other_variables_of_ours_are_none_of_its_business():
    environment = {"LBBSP_MANAGER": "tcp://127.0.0.1:5551", "LBBSP_JOB": "j", "LBBSP_KEYS": "k"}
    assert gather({}, environment, None) == Config()


def test_a_manager_takes_its_file_and_logs_json(tmp_path):
    (tmp_path / "m.toml").write_text('log_format = "json"\npredictor = "last"\n')
    out = tmp_path / "log"
    with out.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "lbbsp", "manager", "--config", str(tmp_path / "m.toml"), "--bind", "tcp://127.0.0.1:0"],
            stderr=file,
        )  # fmt: skip
    until(lambda: b"listening on" in out.read_bytes(), "listening")
    process.terminate()
    assert process.wait(20) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["level"] for line in lines] == ["info"] * len(lines)
    assert lines[0]["message"].startswith("listening on ")
    assert lines[-1]["message"] == "stopped by SIGTERM"
