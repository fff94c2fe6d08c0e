"""What NVML tells of a GPU: a Source among the sensors. NaN for each reading that the driver doesn't give.

Without nvidia-ml-py, driver or permission there is no source, and one line of log says why; on MIG devices and old
cards some readings are missing, which is said once too. Knows nothing of frameworks.
"""

import importlib
import logging
import math
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

NAN = math.nan
GIB = 2.0**30
NAMES = (
    "gpu_busy_share",
    "gpu_sm_clock_mhz",
    "gpu_temperature_c",
    "gpu_throttle_reasons",
    "gpu_memory_used_share",
    "gpu_memory_free_gib",
)
IDLE_REASON = 0x1
"""GPU idle: no reason to be slow; left out of the reasons."""


class Gpu:
    """One device by NVML.

    Args:
        nvml: the module pynvml, initialised, or what stands in for it.
        handle: of the device.
    """

    names = NAMES
    every_s = 0.1

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._missing: set[str] = set()

    def read(self, now_s: float) -> tuple[float, ...]:
        """Share of time with a kernel running, SM clock, temperature, throttle reasons (bits), memory. Never raises."""
        nvml, handle = self._nvml, self._handle
        memory = self._value("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        total, free, used = (float(getattr(memory, name, NAN)) for name in ("total", "free", "used"))
        return (
            self._number("utilisation", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100.0),
            self._number("SM clock", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            self._number("temperature", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            self._number("throttle reason", self._reasons),
            used / total if total > 0 else NAN,
            free / GIB,
        )

    def close(self) -> None:
        """Let go of NVML."""
        self._value("shutdown", self._nvml.nvmlShutdown)

    def _reasons(self) -> float:
        return float(int(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)) & ~IDLE_REASON)

    def _number(self, what: str, call: Callable[[], Any]) -> float:
        value = self._value(what, call)
        return NAN if value is None else float(value)

    def _value(self, what: str, call: Callable[[], Any]) -> Any:
        if what in self._missing:
            return None
        try:
            return call()
        except self._nvml.NVMLError as error:
            self._missing.add(what)
            log.info("NVML gives no %s here (%s): NaN from now on", what, error)
            return None


def gpu_sources(index: int | None, uuid: str | None = None, nvml: Any = None) -> list[Gpu]:
    """The GPU as a list of sources: one, or none where NVML can't be used; never raises for that.

    Args:
        index: as NVML counts, which CUDA_VISIBLE_DEVICES does not change; used without a uuid.
        uuid: of the device, as `GPU-...` or `MIG-...`.
        nvml: stands in for pynvml.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            log.info("no GPU sensors: nvidia-ml-py is not installed (pip install lbbsp[gpu])")
            return []
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid) if uuid else nvml.nvmlDeviceGetHandleByIndex(index or 0)
    except nvml.NVMLError as error:
        log.info("no GPU sensors: %s", error)
        return []
    return [Gpu(nvml, handle)]
