"""A job keeps its name through torchrun's restarts, and two jobs never share one; its journal lies where that says."""

import os
import subprocess
import sys
import time

import pytest

from lbbsp.worker import journals
from lbbsp.worker.identity import run_name
from lbbsp.worker.journals import journal_of

ASK = "from lbbsp.worker.identity import run_name; print(run_name())"


def asked(environment: dict[str, str]) -> str:
    return subprocess.run(
        [sys.executable, "-c", ASK], env=os.environ | environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_without_torchrun_there_is_no_name():
    assert run_name({}) is None


def test_the_run_id_is_the_name():
    assert run_name({"TORCHELASTIC_RUN_ID": "nightly"}) == "torchrun nightly"
    assert len(run_name({"TORCHELASTIC_RUN_ID": "x" * 1000})) == 256


def test_without_a_run_id_the_agent_is_the_name_for_all_that_it_starts():
    environment = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_MAX_RESTARTS": "3"}
    names = {asked(environment) for _ in range(2)}
    assert len(names) == 1
    assert names != {"None"}
    assert run_name(environment) not in names


def test_an_agent_that_starts_nothing_again_needs_no_name():
    once = {"TORCHELASTIC_MAX_RESTARTS": "0"}
    drawn = "0f9c3a52-6f0e-4b1c-9a55-3d8f0e3a7b11"
    assert run_name({"TORCHELASTIC_RUN_ID": "none"} | once) is None
    assert run_name({"TORCHELASTIC_RUN_ID": drawn} | once) is None
    assert run_name({"TORCHELASTIC_RUN_ID": "nightly"} | once) == "torchrun nightly"
    assert run_name({"TORCHELASTIC_RUN_ID": drawn, "TORCHELASTIC_MAX_RESTARTS": "2"}) == f"torchrun {drawn}"


def test_journals_are_one_a_named_job_and_old_ones_go(tmp_path, monkeypatch):
    monkeypatch.setenv("LBBSP_STATE_DIR", str(tmp_path / "new"))
    assert journal_of("nonce", "nonce") is None
    old = journal_of("a", "i")
    for name in (old, old.with_name(old.name + ".lock")):
        name.write_bytes(b"")
        os.utime(name, (1.0, 1.0))
    other = tmp_path / "new" / "bound-1.json"
    other.write_bytes(b"")
    os.utime(other, (1.0, 1.0))
    fresh = journal_of("b", "i")
    assert fresh != old
    fresh.write_bytes(b"")
    journal_of("c", "i")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted([other.name, fresh.name])


def test_where_no_folder_can_be_made_nothing_is_kept(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("LBBSP_STATE_DIR", str(tmp_path / "file" / "folder"))
    assert journal_of("a", "i") is None


@pytest.mark.parametrize("age_s", [journals.KEPT_S - 60, journals.KEPT_S + 60])
def test_a_day_is_the_limit(tmp_path, monkeypatch, age_s):
    monkeypatch.setenv("LBBSP_STATE_DIR", str(tmp_path))
    path = journal_of("a", "i")
    path.write_bytes(b"")
    moment = time.time() - age_s
    os.utime(path, (moment, moment))
    journal_of("a", "i")
    assert path.exists() == (age_s < journals.KEPT_S)
