import os

import pytest

from lbbsp.demo import machine
from lbbsp.errors import ConfigError


def allowed(monkeypatch, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(cores))


@pytest.mark.parametrize("slow_rank", [0, 1])
def test_two_cores_take_a_worker_each_and_a_busy_process_beside_the_slow_one(monkeypatch, slow_rank):
    allowed(monkeypatch, {3, 5, 6})
    plan = machine.plan(slow_rank)
    assert (plan.slowdown, plan.cores) == ("busy", (3, 5))
    assert f"core {(3, 5)[slow_rank]}" in plan.label


def test_one_core_falls_back_to_pauses_and_says_so(monkeypatch):
    allowed(monkeypatch, {2})
    plan = machine.plan(1)
    assert (plan.slowdown, plan.cores) == ("pauses", None)
    assert "SIGSTOP" in plan.label


def test_a_system_that_cannot_pin_falls_back_to_pauses(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delattr(os, "sched_setaffinity")
    assert machine.plan(1).slowdown == "pauses"


def test_a_busy_process_asked_for_on_one_core_is_refused(monkeypatch):
    allowed(monkeypatch, {0})
    with pytest.raises(ConfigError, match="needs 2 cores"):
        machine.plan(1, "busy")


def test_missing_libraries_are_named_with_what_to_install(monkeypatch):
    monkeypatch.setattr(machine, "find_spec", lambda name: None if name == "sklearn" else object())
    with pytest.raises(ConfigError, match=r"scikit-learn: pip install 'lbbsp\[demo\]'"):
        machine.require_libraries()


def test_a_missing_framework_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(machine, "find_spec", lambda name: None if name == "tensorflow" else object())
    machine.require_libraries("torch")
    with pytest.raises(ConfigError, match=r"needs tensorflow: pip install 'lbbsp\[demo-tensorflow\]'"):
        machine.require_libraries("tensorflow")
