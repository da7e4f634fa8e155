"""Readings of the utilization, memory and temperature of the GPUs, taken at little cost.

NVML is opened once, through `nvidia-ml-py`. Without that package, GPUtil is used, which starts
`nvidia-smi` at each read. Without a GPU, a driver or a package, the list is empty and no error is
raised. All GPUs of the machine are read, regardless of CUDA_VISIBLE_DEVICES.
"""

import contextlib
import statistics
import time
from dataclasses import fields, replace

from infrastructure.core.hardware import (
    GpuReading,
    gpus_by_gputil,
    nvml_cards,
    open_nvml,
    read_by_nvml,
)

SAMPLE_SECONDS = 0.5


class GpuReadings:
    """An open connection to the driver. It must not be used by two threads at once.

    Attributes:
        source: "nvml", "gputil" or "none".
    """

    def __init__(self) -> None:
        self._nvml = nvml = open_nvml()
        self._cards: list[tuple[int, object, str]] = []
        if nvml is not None:
            with contextlib.suppress(nvml.NVMLError):
                self._cards = nvml_cards(nvml)
        self.source = "nvml" if self._cards else "gputil" if gpus_by_gputil() else "none"

    def read(self) -> list[GpuReading]:
        """Return current readings of all GPUs, except those that no longer respond."""
        if self.source == "gputil":
            names = [field.name for field in fields(GpuReading)]
            return [
                GpuReading(**{name: getattr(gpu, name) for name in names})
                for gpu in gpus_by_gputil()
            ]
        if self._nvml is None:
            return []
        readings = [read_by_nvml(self._nvml, *card) for card in self._cards]
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
