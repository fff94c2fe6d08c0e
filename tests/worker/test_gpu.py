"""GPU sensors: absent, forbidden or partly unsupported NVML gives NaN and one line of log, never an error."""

import logging
import math
from types import SimpleNamespace

import pytest

from lbbsp.worker.gpu import NAMES, Gpu, gpu_sources
from lbbsp.worker.sensors import Sensors


class NVMLError(Exception):
    """As pynvml has it."""


class Nvml:
    """Stands in for pynvml; `broken` calls raise."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    def __init__(self, *broken):
        self.broken, self.calls = broken, 0

    def __getattr__(self, name):
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*args):
            self.calls += 1
            if any(word in name for word in self.broken):
                raise NVMLError("Not Supported")
            return {
                "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=8 * 2**30, free=6 * 2**30, used=2 * 2**30),
                "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=55),
                "nvmlDeviceGetClockInfo": 1410,
                "nvmlDeviceGetTemperature": 71,
                "nvmlDeviceGetCurrentClocksThrottleReasons": 0x1 | 0x20,
            }.get(name, "handle")

        return call


def test_all_readings_come_in_order():
    (source,) = gpu_sources(0, nvml=Nvml())
    assert source.names == NAMES
    assert source.read(0.0) == (0.55, 1410.0, 71.0, 32.0, 0.25, 6.0)


@pytest.mark.parametrize("broken", ["Init", "HandleByIndex"])
def test_without_driver_or_permission_there_is_no_source_and_one_line(broken, caplog):
    with caplog.at_level(logging.INFO):
        assert gpu_sources(0, nvml=Nvml(broken)) == []
    assert len(caplog.records) == 1


def test_what_mig_does_not_support_is_nan_and_told_once(caplog):
    source = Gpu(Nvml("Utilization"), "handle")
    with caplog.at_level(logging.INFO):
        readings = [source.read(float(k)) for k in range(5)]
    assert all(math.isnan(one[0]) and one[1] == 1410.0 for one in readings)
    assert len(caplog.records) == 1


def test_memory_unsupported_is_nan():
    assert all(math.isnan(value) for value in Gpu(Nvml("Memory"), "handle").read(0.0)[4:])


def test_the_source_works_among_the_sensors():
    sensors = Sensors(gpu_sources(None, "GPU-1", Nvml()))
    assert sensors.names == NAMES
    assert sensors.read()[2] == 71.0
    sensors.close()


def test_on_this_machine_it_never_raises():
    for source in gpu_sources(0):
        source.read(0.0)
        source.close()
