"""Every finding of the doctor's that is not well comes with a fix."""

import subprocess
import sys

import pytest

from lbbsp.doctor import machine
from lbbsp.doctor.command import line
from lbbsp.doctor.finding import Finding, Level
from lbbsp.doctor.manager import reach


def doctor(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lbbsp", "doctor", *options], capture_output=True, text=True, timeout=60, check=False
    )


def test_with_no_manager_given_one_is_tried_out():
    done = doctor()
    assert done.returncode == 0, done.stdout
    assert "answers; none was given" in done.stdout
    assert done.stderr == ""


def test_a_given_manager_is_reached_and_left_as_it_was(manager):
    done = doctor("--manager", manager.address)
    assert done.returncode == 0
    assert f"{manager.address} answers" in done.stdout
    assert "has ended" in manager.log()


def test_a_manager_that_is_not_there_is_a_problem_with_a_fix():
    found = reach("tcp://127.0.0.1:1", patience_s=0.1)
    assert found.level is Level.PROBLEM
    assert "firewall" in found.fix


def test_a_bad_address_is_a_problem_with_a_fix():
    done = doctor("--manager", "here")
    assert done.returncode == 1
    assert "tcp://HOST:PORT" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("allowed", "quota", "levels", "word"),
    [
        ({0, 1}, None, [Level.OK, Level.OK], ""),
        ({0, 1}, 2.0, [Level.OK, Level.OK], ""),
        ({0, 1}, 1.5, [Level.OK, Level.NOTE], "at most 1 busy"),
        ({3}, None, [Level.NOTE, Level.OK], "a core of its own"),
        ({0, 1, 2, 3}, 0.5, [Level.OK, Level.NOTE], "at most 1 busy"),
    ],
)
def test_cores_and_quota(allowed, quota, levels, word):
    findings = list(machine.cores(allowed, 4, quota))
    assert [finding.level for finding in findings] == levels
    assert word in "".join(finding.fix for finding in findings)


@pytest.mark.parametrize(("limit", "level"), [(256, Level.NOTE), (1 << 20, Level.OK), (-1, Level.OK)])
def test_open_files(limit, level):
    assert machine.open_files(limit).level is level


def test_missing_sensors_are_named_with_a_fix():
    found = machine.sensors({"running": 1.0, "psi_cpu_share": float("nan"), "steal_share": float("nan")})
    assert found.level is Level.NOTE
    assert "psi_cpu_share, steal_share" in found.text
    assert "psi=1" in found.fix


def test_all_that_is_not_well_has_a_fix():
    for finding in machine.machine_findings():
        assert (finding.level is Level.OK) == (finding.fix == "")


def test_a_line_shows_the_fix():
    assert line(Finding("cores", "none", Level.PROBLEM, "buy some")).endswith("fix: buy some")
