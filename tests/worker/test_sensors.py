"""Sensors: fresh at the barrier, cheap on average, NaN (never 0) for what is not there."""

import math
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lbbsp.worker.cgroup import cpu_quota_cores, memory_groups
from lbbsp.worker.sensors import BUDGET_S, Sensors, machine_sources
from lbbsp.worker.session import Session
from lbbsp.worker.vector import Vector

STAT = """cpu  0 0 0 0 0 0 0 0 0 0
{lines}
intr 1 2 3
"""


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def root(tmp_path):
    """A small /proc of our own."""
    write(tmp_path, "proc/loadavg", "0.50 0.10 0.10 3/100 4242\n")
    write(tmp_path, "proc/self/schedstat", "1000000000 500000000 10\n")
    write(tmp_path, "proc/meminfo", "MemTotal: 4194304 kB\nMemFree: 1 kB\nMemAvailable: 1048576 kB\n")
    set_ticks(tmp_path, busy=100, idle=900, steal=0)
    for name in ("cpu", "memory", "io"):
        set_stall(tmp_path, name, 0)
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def set_ticks(root: Path, busy: int, idle: int, steal: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    lines = "\n".join(f"cpu{core} {busy} 0 0 {idle} 0 0 0 {steal} 0 0" for core in cores)
    write(root, "proc/stat", STAT.format(lines=lines))


def set_stall(root: Path, name: str, total_us: int) -> None:
    text = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total_us}\nfull avg10=0 avg60=0 avg300=0 total=0\n"
    write(root, f"proc/pressure/{name}", text)


def read(sensors: Sensors) -> dict[str, float]:
    return dict(zip(sensors.names, sensors.read(), strict=True))


def test_readings_of_this_moment_come_at_once_and_averages_at_the_second_read(root, clock):
    sensors = Sensors(machine_sources(root), clock)
    first = read(sensors)
    assert first["running"] == 2.0
    assert first["load_1min"] == 0.5
    assert first["memory_used_share"] == 0.75
    assert first["memory_available_gib"] == 1.0
    assert math.isnan(first["cpu_busy_share"])
    assert math.isnan(first["psi_cpu_share"])
    clock.now_s += 10.0
    set_ticks(root, busy=400, idle=1500, steal=100)
    set_stall(root, "cpu", 2_500_000)
    write(root, "proc/self/schedstat", "2000000000 1500000000 10\n")
    second = read(sensors)
    assert second["cpu_busy_share"] == pytest.approx(0.4)
    assert second["steal_share"] == pytest.approx(0.1)
    assert second["psi_cpu_share"] == pytest.approx(0.25)
    assert second["run_delay_share"] == pytest.approx(0.1)
    assert second["own_cpu_cores"] >= 0.0
    sensors.close()


def test_what_is_missing_is_nan(tmp_path, clock):
    sensors = Sensors(machine_sources(tmp_path), clock)
    sensors.read()
    clock.now_s += 1.0
    readings = read(sensors)
    of_the_process = {"own_cpu_cores", "preemptions_per_s"}
    assert {name for name, value in readings.items() if not math.isnan(value)} == of_the_process
    sensors.close()


def test_a_schedstat_of_zeros_is_missing(root, clock):
    write(root, "proc/self/schedstat", "0 0 1\n")
    sensors = Sensors(machine_sources(root), clock)
    sensors.read()
    clock.now_s += 1.0
    assert math.isnan(read(sensors)["run_delay_share"])
    sensors.close()


@pytest.mark.parametrize("name", ["proc/loadavg", "proc/stat", "proc/meminfo", "proc/pressure/cpu"])
@pytest.mark.parametrize("text", ["", "cpu0 what\n", "\x00\xff", "1 2 3 4 5\n"])
def test_nonsense_in_a_file_never_raises(root, clock, name, text):
    write(root, name, text)
    sensors = Sensors(machine_sources(root), clock)
    for _ in range(3):
        assert all(math.isnan(value) or math.isfinite(value) for value in sensors.read())
        clock.now_s += 1.0
    sensors.close()


class Slow:
    """A source that takes its time."""

    names = ("slow",)
    every_s = 0.0

    def __init__(self, clock: Clock, cost_s: float) -> None:
        self._clock, self._cost_s, self.reads = clock, cost_s, 0

    def read(self, now_s: float) -> tuple[float, ...]:
        self._clock.now_s += self._cost_s
        self.reads += 1
        return (float(self.reads),)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("first_s", "most_s"), [(10e-6, 10e-6 + BUDGET_S + 60e-6), (60e-6, 60e-6 + 25e-6)])
def test_slow_sources_take_turns_so_that_a_read_is_cheap_on_average(clock, first_s, most_s):
    sources = [Slow(clock, first_s)] + [Slow(clock, 60e-6) for _ in range(4)]
    sensors = Sensors(sources, clock)
    sensors.read()
    spent_s = 0.0
    for _ in range(1000):
        before_s = clock.now_s
        sensors.read()
        spent_s += clock.now_s - before_s
        clock.now_s += 1e-3
    assert sources[0].reads == 1001
    assert spent_s / 1000 < most_s
    turns = [source.reads for source in sources[1:]]
    assert min(turns) > 50
    assert max(turns) - min(turns) <= 1


def test_this_machine_can_be_read():
    sensors = Sensors()
    sensors.read()
    assert len(sensors.read()) == len(sensors.names) == len(set(sensors.names))
    sensors.close()


def test_version_2_control_groups_limit_memory_and_cores(root, clock):
    write(root, "proc/self/cgroup", "0::/box/job\n")
    write(root, "sys/fs/cgroup/box/job/memory.max", "max\n")
    write(root, "sys/fs/cgroup/box/memory.max", f"{2**31}\n")
    write(root, "sys/fs/cgroup/box/memory.current", f"{2**31 - 2**28}\n")
    write(root, "sys/fs/cgroup/box/memory.stat", f"anon 5\ninactive_file {2**28}\n")
    write(root, "sys/fs/cgroup/box/cpu.max", "150000 100000\n")
    write(root, "sys/fs/cgroup/box/job/cpu.max", "max 100000\n")
    assert cpu_quota_cores(root) == 1.5
    sensors = Sensors(machine_sources(root), clock)
    assert read(sensors)["memory_available_gib"] == 0.5
    assert read(sensors)["memory_used_share"] == 0.75
    sensors.close()


def test_version_1_control_groups_limit_memory_and_cores(root):
    write(root, "proc/self/cgroup", "4:memory:/box\n2:cpu,cpuacct:/box\n0::/\n")
    write(root, "sys/fs/cgroup/memory/box/memory.limit_in_bytes", "1073741824\n")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(root, "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "50000\n")
    write(root, "sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert [group.limit_bytes for group in memory_groups(root)] == [2**30]
    assert cpu_quota_cores(root) == 0.5


def test_no_control_group_is_no_limit(tmp_path):
    assert memory_groups(tmp_path) == []
    assert cpu_quota_cores(tmp_path) is None


def test_a_rank_reads_as_often_as_the_newest_plan_says_and_else_the_welcome():
    follower = SimpleNamespace(in_force=Vector(np.array([4, 4])))
    session = SimpleNamespace(
        _iterations=0,
        _sensors=SimpleNamespace(read=lambda: (1.0,)),
        follower=follower,
        client=SimpleNamespace(sensors_every=2),
    )

    def readings(iterations):
        return [len(Session._readings(session)) for _ in range(iterations)]

    assert readings(4) == [0, 1, 0, 1]
    follower.in_force = replace(follower.in_force, sensors_every=4)
    assert readings(8) == [0, 0, 0, 1] * 2
    follower.in_force = replace(follower.in_force, sensors_every=0)
    assert readings(4) == [0, 1, 0, 1]
