"""GPU readings: NVML opened once, GPUtil behind it, and an empty list where nothing answers."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from infrastructure.core import gpu_readings as module
from infrastructure.core.gpu_readings import GpuReadings, readings_over
from infrastructure.core.hardware import GIB, MIB, GpuReading


class FakeNVMLError(Exception):
    """Stands for pynvml.NVMLError."""


class FakeNvml(ModuleType):
    """Two T4 cards with NVML's own function names; a question in `silent` is not supported."""

    NVMLError = FakeNVMLError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, silent: tuple[str, ...] = ()) -> None:
        super().__init__("pynvml")
        self.__spec__ = SimpleNamespace(name="pynvml")  # type: ignore[assignment]
        self.silent, self.calls = set(silent), list[str]()

    def _answer(self, name: str, value: object) -> object:
        self.calls.append(name)
        if name in self.silent:
            raise FakeNVMLError("Not Supported")
        return value

    def nvmlInit(self) -> object:  # noqa: N802
        return self._answer("Init", None)

    def nvmlShutdown(self) -> object:  # noqa: N802
        return self._answer("Shutdown", None)

    def nvmlDeviceGetCount(self) -> object:  # noqa: N802
        return self._answer("Count", 2)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> object:  # noqa: N802
        return self._answer("Handle", index)

    def nvmlDeviceGetName(self, handle: int) -> object:  # noqa: N802
        return self._answer("Name", b"Tesla T4")

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> object:  # noqa: N802
        return self._answer("Memory", SimpleNamespace(total=16 * GIB, used=4 * GIB))

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> object:  # noqa: N802
        return self._answer("Utilization", SimpleNamespace(gpu=37 + handle, memory=5))

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> object:  # noqa: N802
        return self._answer("Temperature", 61)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> object:  # noqa: N802
        return self._answer("Power", 70_500)


@pytest.fixture
def path_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty PATH, whose folder a test may fill."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_nvml_is_opened_once_and_read_often(
    monkeypatch: pytest.MonkeyPatch, path_folder: Path
) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    readings = GpuReadings()
    for _ in range(3):
        first, second = readings.read()
    assert readings.source == "nvml"
    assert nvml.calls.count("Init") == 1
    assert (first.index, first.name, first.utilization_percent) == (0, "Tesla T4", 37.0)
    assert (second.index, second.utilization_percent) == (1, 38.0)
    assert (first.memory_percent, first.temperature_celsius, first.power_watts) == (25.0, 61, 70.5)


def test_what_a_card_does_not_report_is_none(
    monkeypatch: pytest.MonkeyPatch, path_folder: Path
) -> None:
    monkeypatch.setitem(
        sys.modules, "pynvml", FakeNvml(silent=("Utilization", "Temperature", "Power"))
    )
    reading = GpuReadings().read()[0]
    assert reading.utilization_percent is reading.temperature_celsius is reading.power_watts is None


def test_a_card_that_falls_off_the_bus_is_left_out(
    monkeypatch: pytest.MonkeyPatch, path_folder: Path
) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    readings = GpuReadings()
    nvml.silent = {"Memory"}
    assert readings.read() == []


@pytest.mark.parametrize("broken", ["Init", "Count", "Handle"])
def test_without_a_driver_there_is_an_empty_list(
    monkeypatch: pytest.MonkeyPatch, path_folder: Path, broken: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(silent=(broken,)))
    readings = GpuReadings()
    assert (readings.source, readings.read()) == ("none", [])


def test_closing_lets_the_driver_go(monkeypatch: pytest.MonkeyPatch, path_folder: Path) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    readings = GpuReadings()
    readings.close()
    assert nvml.calls[-1] == "Shutdown"
    assert (readings.source, readings.read()) == ("none", [])


def test_gputil_answers_where_nvml_does_not(
    monkeypatch: pytest.MonkeyPatch, path_folder: Path
) -> None:
    card = SimpleNamespace(
        id="1", name="A100", uuid="GPU-2", driver="580.1", load=0.25, temperature=math.nan
    )
    card.memoryTotal, card.memoryUsed = 40960.0, 1024.0
    module = ModuleType("GPUtil")
    module.__spec__ = SimpleNamespace(name="GPUtil")  # type: ignore[assignment]
    module.getGPUs = lambda: [card]  # type: ignore[attr-defined]
    (path_folder / "nvidia-smi").write_text("#!/bin/sh\n")
    (path_folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setitem(sys.modules, "GPUtil", module)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(silent=("Init",)))
    readings = GpuReadings()
    assert readings.source == "gputil"
    sizes = (1024 * MIB, 40960 * MIB)
    assert readings.read() == [GpuReading(1, "A100", 25.0, *sizes, None, None)]
    readings.close()
    assert readings.read() == []


class Looks:
    """Looks at two GPUs, of which the second shows its power once, and no load."""

    num, is_closed = 0, False

    def read(self) -> list[GpuReading]:
        self.num += 1
        first = GpuReading(0, "T4", 20.0 * self.num, 400 - 100 * self.num, 1000, 60.0, 70.0)
        power = 50.0 if self.num == 2 else None
        return [first, GpuReading(3, "L4", None, 100 * self.num, 2000, 40.0 + self.num, power)]

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(
    ("seconds", "slept", "load", "most"),
    [(1.2, [0.5, 0.5, 0.5], 50.0, 400), (0.1, [0.1], 30.0, 200)],
)
def test_the_use_of_a_gpu_over_some_time_is_one_reading(
    seconds: float, slept: list[float], load: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, waits = Looks(), list[float]()
    monkeypatch.setattr(module, "GpuReadings", lambda: looks)
    clock = SimpleNamespace(monotonic=lambda: sum(waits), sleep=waits.append)
    monkeypatch.setattr(module, "time", clock)
    assert readings_over(seconds) == [
        GpuReading(0, "T4", load, 300, 1000, 60.0, 70.0),
        GpuReading(3, "L4", None, most, 2000, 40.0 + most / 100, 50.0),
    ]
    assert (waits, looks.is_closed) == (slept, True)
