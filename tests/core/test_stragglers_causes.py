"""Each cause is told from the figures that speak for it, and says them."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow_jobs import SENSORS, Job

from lbbsp.core.added import PARTS
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


CORES = {"compute_s": 0.1, "window_s": 0.1, "own_share": 0.95, "delay_share": 0.02, "cpu_busy_share": 0.99}
"""Of a rank on cores that others keep busy all the time."""
NOW = CORES | {"compute_s": 0.2, "window_s": 0.2}


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"own_share": 0.5, "delay_share": 0.48}, Cause.NEIGHBOUR),
        ({"own_share": 0.48, "delay_share": 0.01}, Cause.BLOCKED),
        ({"own_share": 0.95, "delay_share": 0.02}, Cause.CLOCKS),
        ({"own_share": 0.97, "delay_share": 0.02, "steal_share": 0.4}, Cause.NEIGHBOUR),
    ],
)
def test_added_time_is_accounted_for_by_work_waits_for_a_core_and_sleep(changed, cause):
    diagnosis = diagnose(CORES, NOW | changed, fresh=True)
    assert diagnosis.cause is cause
    for threads in (2.0, 8.0):
        before, now = (figures | {"own_share": threads * figures["own_share"]} for figures in (CORES, NOW | changed))
        assert diagnose(before, now, fresh=True).cause is cause, "the same with more threads"


def test_more_work_on_crowded_cores_is_no_new_neighbour():
    """It waits for a core two thirds of the time, before as now."""
    crowded = CORES | {"own_share": 0.33, "delay_share": 0.66}
    now = crowded | {"compute_s": 0.2, "window_s": 0.2}
    assert diagnose(crowded, now, fresh=True).cause is Cause.CLOCKS
    assert diagnose(crowded, now | {"own_share": 0.17, "delay_share": 0.82}, fresh=True).cause is Cause.NEIGHBOUR
    assert diagnose(crowded, now | {"own_share": 0.17, "delay_share": 0.33}, fresh=True).cause is Cause.BLOCKED


def test_readings_over_iterations_of_before_too_are_held_against_their_own_time():
    """The rank is twice as slow; half of the iterations that were read are from before."""
    read = {"window_s": 0.15, "own_share": 0.95 * 0.1 / 0.15, "delay_share": 0.34}
    assert diagnose(CORES, NOW | read, fresh=True).cause is Cause.NEIGHBOUR
    read = {"window_s": 0.15, "own_share": 0.95, "delay_share": 0.02}
    assert diagnose(CORES, NOW | read, fresh=True).cause is Cause.CLOCKS


def phases(before_s=0.0, forward_s=0.03, backward_s=0.06):
    return np.tile([before_s, forward_s, backward_s], (6, 1))


def test_the_evidence_says_where_in_the_step_the_added_time_lies():
    job = Job().run(60, sensors=readings(), phases_s=phases())
    job.slow(2, 2.0).run(15, sensors=readings(), phases_s=phases(forward_s=0.06, backward_s=0.13))
    diagnosis = job.watcher.flagged[2].diagnosis
    assert diagnosis.cause is Cause.CLOCKS
    assert re.search(r"of what was added 6\d% in backward, 2\d% in forward", diagnosis.evidence)


def test_work_outside_of_the_model_is_no_slower_core():
    job = Job().run(60, sensors=readings(), phases_s=phases())
    job.slow(2, 2.0).run(15, sensors=readings(), phases_s=phases(before_s=0.1))
    diagnosis = job.watcher.flagged[2].diagnosis
    assert diagnosis.cause is Cause.LOOP
    assert "between draw and forward" in diagnosis.evidence


def test_phases_that_were_told_before_the_rank_was_slow_say_nothing():
    job = Job().run(60, sensors=readings(), phases_s=phases())
    job.slow(2, 2.0).run(15, sensors=readings())
    diagnosis = job.watcher.flagged[2].diagnosis
    assert diagnosis.cause is Cause.CLOCKS
    assert "of what was added" not in diagnosis.evidence


def test_a_gpu_s_clock_is_told_and_a_busy_gpu_is_no_idle_core():
    usual = {"compute_s": 0.1, "own_share": 0.9, "gpu_sm_clock_mhz": 1800.0, "gpu_busy_share": 0.9}
    now = usual | {"compute_s": 0.2, "own_share": 0.45}
    assert diagnose(usual, now | {"gpu_sm_clock_mhz": 900.0}, fresh=True).cause is Cause.CLOCKS
    assert diagnose(usual, now, fresh=True).cause is Cause.UNKNOWN
    assert diagnose(usual, now | {"gpu_busy_share": 0.4}, fresh=True).cause is Cause.BLOCKED


def test_a_machine_without_sensors_yields_no_false_cause():
    usual = {"compute_s": 0.1, "input_s": 0.0, "cost": float("nan")}
    diagnosis = diagnose(usual, usual | {"compute_s": 0.2}, fresh=True)
    assert diagnosis.cause is Cause.UNKNOWN


TIMES = ("compute_s", "input_s", "window_s", *PARTS)
READ = ("cost", "own_share", "delay_share", "steal_share", "gpu_sm_clock_mhz", "gpu_busy_share", *USUAL)
PROFILE = st.fixed_dictionaries(
    dict.fromkeys(TIMES, st.sampled_from([0.0, 5e-324, 1e-9, 0.1, 0.2, 1e6, float("nan")]))
    | dict.fromkeys(READ, st.sampled_from([0.0, -0.0, -1.0, 5e-324, 0.5, 1.0, 1e308, float("inf"), float("nan")]))
)


@given(PROFILE, PROFILE, st.booleans())
def test_whatever_ranks_say_of_themselves_there_is_a_diagnosis(before, now, fresh):
    assert diagnose(before, now, fresh).evidence
