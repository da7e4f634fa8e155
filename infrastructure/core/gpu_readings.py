"""Readings of the utilization, memory and temperature of the GPUs, taken at little cost.

NVML is opened once, through `nvidia-ml-py`. Without that package, GPUtil is used, which starts
`nvidia-smi` at each read. Without a GPU, a driver or a package, the list is empty and no error is
raised. All GPUs of the machine are read, regardless of CUDA_VISIBLE_DEVICES.
"""

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, TypeVar

from infrastructure.core.hardware import GPU, gpus_by_gputil, open_nvml

Value = TypeVar("Value")
SAMPLE_SECONDS = 0.5


@dataclass(frozen=True)
class GpuReading:
    """The reading of one GPU at one moment. Values that the driver does not report are None."""

    index: int
    name: str
    utilization_percent: float | None
    memory_used_bytes: int
    memory_total_bytes: int
    temperature_celsius: float | None
    power_watts: float | None

    @property
    def memory_percent(self) -> float:
        return 100 * self.memory_used_bytes / max(1, self.memory_total_bytes)


class GpuReadings:
    """An open connection to the driver. It must not be used by two threads at once.

    Attributes:
        source: "nvml", "gputil" or "none".
    """

    def __init__(self) -> None:
        self._nvml = open_nvml()
        self._cards = _cards(self._nvml) if self._nvml is not None else []
        self.source = "nvml" if self._cards else "gputil" if gpus_by_gputil() else "none"

    def read(self) -> list[GpuReading]:
        """Return current readings of all GPUs, except those that no longer respond."""
        if self.source == "gputil":
            return [_of_gpu(gpu) for gpu in gpus_by_gputil()]
        readings = [_read(self._nvml, *card) for card in self._cards]
        return [reading for reading in readings if reading is not None]

    def close(self) -> None:
        """Release the driver's library. Nothing can be read afterwards."""
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
        self._nvml, self._cards, self.source = None, [], "none"


def readings_over(seconds: float) -> list[GpuReading]:
    """Read the GPUs for some seconds, and return one reading of each.

    It has the mean utilization and power, and the highest memory and temperature.
    """
    readings = GpuReadings()
    try:
        seen: dict[int, list[GpuReading]] = {}
        end = time.monotonic() + seconds
        while latest := readings.read():
            for reading in latest:
                seen.setdefault(reading.index, []).append(reading)
            if time.monotonic() >= end:
                break
            time.sleep(min(SAMPLE_SECONDS, seconds))
    finally:
        readings.close()
    return [_summed_up(samples) for samples in seen.values()]


def _summed_up(samples: list[GpuReading]) -> GpuReading:
    def known(name: str) -> list[float]:
        values = (getattr(sample, name) for sample in samples)
        return [value for value in values if value is not None]

    def mean(name: str) -> float | None:
        return statistics.fmean(values) if (values := known(name)) else None

    return replace(
        samples[0],
        utilization_percent=mean("utilization_percent"),
        memory_used_bytes=max(sample.memory_used_bytes for sample in samples),
        temperature_celsius=max(known("temperature_celsius"), default=None),
        power_watts=mean("power_watts"),
    )


def _cards(nvml: ModuleType) -> list[tuple[int, object, str]]:
    """Return the index, handle and name of each GPU."""
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        names = [nvml.nvmlDeviceGetName(handle) for handle in handles]
    except nvml.NVMLError:
        return []
    texts = [name.decode() if isinstance(name, bytes) else str(name) for name in names]
    return list(zip(range(len(handles)), handles, texts, strict=True))


def _read(nvml: Any, index: int, handle: Any, name: str) -> GpuReading | None:
    def query(function: Callable[..., Value], *arguments: object) -> Value | None:
        try:
            return function(handle, *arguments)
        except nvml.NVMLError:  # many cards do not report everything
            return None

    space = query(nvml.nvmlDeviceGetMemoryInfo)
    if space is None:
        return None
    load = query(nvml.nvmlDeviceGetUtilizationRates)
    celsius = query(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU)
    milliwatts = query(nvml.nvmlDeviceGetPowerUsage)
    return GpuReading(
        index=index,
        name=name,
        utilization_percent=None if load is None else float(load.gpu),
        memory_used_bytes=int(space.used),
        memory_total_bytes=int(space.total),
        temperature_celsius=None if celsius is None else float(celsius),
        power_watts=None if milliwatts is None else milliwatts / 1000,
    )


def _of_gpu(gpu: GPU) -> GpuReading:
    return GpuReading(
        index=gpu.index,
        name=gpu.name,
        utilization_percent=gpu.utilization_percent,
        memory_used_bytes=gpu.memory_used_bytes,
        memory_total_bytes=gpu.memory_total_bytes,
        temperature_celsius=gpu.temperature_celsius,
        power_watts=gpu.power_watts,
    )
