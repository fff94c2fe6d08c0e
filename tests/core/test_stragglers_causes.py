"""Each cause is told from the figures that speak for it, and says them."""

import numpy as np
import pytest
from slow_jobs import SENSORS, Job

from lbbsp.core.causes import Cause, diagnose

USUAL = {
    "cpu_busy_share": 0.8,
    "own_cpu_cores": 0.9,
    "preemptions_per_s": 2.0,
    "psi_memory_share": 0.0,
    "psi_io_share": 0.0,
}


def readings(ranks=6, rank=2, **changed):
    """Sensors of all ranks, one of them changed."""
    rows = np.tile([USUAL[name] for name in SENSORS], (ranks, 1)).astype(float)
    for name, value in changed.items():
        rows[rank, SENSORS.index(name)] = value
    return rows


def one(value, other, ranks=6, rank=2):
    return np.where(np.arange(ranks) == rank, value, other)


CASES = {
    Cause.NEIGHBOUR: ({"own_cpu_cores": 0.45, "cpu_busy_share": 1.0, "preemptions_per_s": 90.0}, {}),
    Cause.BLOCKED: ({"own_cpu_cores": 0.45, "cpu_busy_share": 0.5}, {}),
    Cause.CLOCKS: ({}, {}),
    Cause.MEMORY: ({"psi_memory_share": 0.4, "own_cpu_cores": 0.5}, {}),
    Cause.INPUT: ({"own_cpu_cores": 0.45}, {"input_s": lambda time_s: one(time_s - 0.1, 0.001)}),
    Cause.DISK: ({"psi_io_share": 0.5}, {"input_s": lambda time_s: one(time_s - 0.1, 0.001)}),
    Cause.DATA: ({}, {"cost": one(200.0, 100.0)}),
}


@pytest.mark.parametrize("cause", CASES)
def test_the_cause_is_named_with_figures(cause):
    changed, fields = CASES[cause]
    calm = {"cost": np.full(6, 100.0)}
    job = Job().run(60, sensors=readings(), wait_s=np.zeros(6), **calm)
    job.slow(2, 2.0).run(15, sensors=readings(**changed), wait_s=np.zeros(6), **calm | fields)
    diagnosis = job.watcher.flagged[2].diagnosis
    assert diagnosis.cause == cause
    assert diagnosis.certain
    assert any(figure.isdigit() for figure in diagnosis.evidence)


def test_without_a_reading_of_sensors_the_cause_is_open():
    job = Job().run(60, sensors=readings())
    job.slow(2, 2.0).run(8)
    diagnosis = job.watcher.flagged[2].diagnosis
    assert diagnosis.cause is Cause.UNKNOWN
    assert not diagnosis.certain
    assert "not read since" in diagnosis.evidence
    job.run(10, sensors=readings(cpu_busy_share=1.0, own_cpu_cores=0.4))
    assert [event.change for event in job.events] == ["raised", "explained"]
    assert job.watcher.flagged[2].diagnosis.cause is Cause.NEIGHBOUR


def test_waits_of_a_faster_rank_do_not_look_like_lost_processor_time():
    """Processor time is read over whole iterations; it is judged for the own time in them."""
    job = Job().run(60, sensors=readings(own_cpu_cores=0.45), wait_s=one(0.1, 0.0))
    job.slow(2, 2.0).run(30, sensors=readings(own_cpu_cores=0.9), wait_s=np.zeros(6))
    assert job.watcher.flagged[2].diagnosis.cause is Cause.CLOCKS


def test_a_reduction_that_ends_late_is_the_network():
    job = Job().run(60, wait_s=lambda time_s: 0.01 + one(0.002, 0.001))
    job.run(15, wait_s=lambda time_s: 0.01 + one(0.08, 0.001))
    assert job.flagged == [2]
    assert job.watcher.flagged[2].diagnosis.cause is Cause.NETWORK
    assert job.run(25, wait_s=lambda time_s: 0.01 + one(0.002, 0.001)).flagged == []


def test_a_machine_without_sensors_yields_no_false_cause():
    usual = {"compute_s": 0.1, "input_s": 0.0, "cost": float("nan")}
    diagnosis = diagnose(usual, usual | {"compute_s": 0.2}, fresh=True)
    assert diagnosis.cause is Cause.UNKNOWN
