"""What NVIDIA's driver counts, through its own library (NVML) by ctypes, so that no package is needed."""

from __future__ import annotations

import ctypes

__all__ = ["Gpus"]

_LIBRARY = "libnvidia-ml.so.1"
_CLOCK_SM = 1


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Gpus:
    """Utilisation, used memory, power and clock of each GPU that this container sees."""

    def __init__(self, library: str = _LIBRARY) -> None:
        self._devices: list[ctypes.c_void_p] = []
        try:
            self._nvml = ctypes.CDLL(library)
            self._open()
        except (OSError, AttributeError):  # no driver, or one too old
            self._devices = []

    def _open(self) -> None:
        if self._nvml.nvmlInit_v2() != 0:
            return
        count = ctypes.c_uint()
        if self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return
        for index in range(count.value):
            device = ctypes.c_void_p()
            if self._nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) == 0:
                self._devices.append(device)

    def sample(self, _now: float) -> list[tuple[str, str, str, float]]:
        """Return what the driver tells; what it does not, or not of this GPU, is left out."""
        values: list[tuple[str, str, str, float]] = []
        for index, device in enumerate(self._devices):
            name = f"gpu{index}"
            use, memory, number = _Utilization(), _Memory(), ctypes.c_uint()
            if self._nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(use)) == 0:
                values.append(("gpu", name, "GPUUtilization", use.gpu))
            # Of the memory, what is used; the driver's own "memory utilisation" is the time of its controller.
            if self._nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == 0 and memory.total:
                values.append(("gpu", name, "GPUMemoryUtilization", 100 * memory.used / memory.total))
            if self._nvml.nvmlDeviceGetPowerUsage(device, ctypes.byref(number)) == 0:
                values.append(("gpu", name, "PowerWatts", number.value / 1000))
            if self._nvml.nvmlDeviceGetClockInfo(device, ctypes.c_int(_CLOCK_SM), ctypes.byref(number)) == 0:
                values.append(("gpu", name, "ClockMHz", number.value))
        return values
