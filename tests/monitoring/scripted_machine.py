"""A machine and GPUs whose readings follow a script; what they replace is tested by itself."""

from dataclasses import replace
from typing import Any

from infrastructure.core.gpu_readings import GpuReadings
from infrastructure.core.hardware import GpuReading
from infrastructure.core.machine_readings import MachineReading, MachineReadings

GIB = 1 << 30
CALM = MachineReading(
    cpu_percent=20.0,
    memory_used_bytes=2 * GIB,
    memory_total_bytes=16 * GIB,
    process_memory_bytes=GIB,
    disk_read_bytes_per_second=0.0,
    disk_write_bytes_per_second=0.0,
    network_received_bytes_per_second=None,
    network_sent_bytes_per_second=None,
    disk_free_bytes=100 * GIB,
)
CALM_GPU = GpuReading(0, "Tesla T4", 50.0, 4 * GIB, 16 * GIB, 60.0, 70.0)


class ScriptedMachine(MachineReadings):
    """Always the same reading, until `now` is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.now = CALM

    def read(self) -> MachineReading:
        return self.now

    def set(self, **changes: Any) -> None:
        self.now = replace(CALM, **changes)


class ScriptedGpus(GpuReadings):
    """As many GPUs as `now` holds."""

    def __init__(self) -> None:
        super().__init__()
        self.now = [CALM_GPU]

    def read(self) -> list[GpuReading]:
        return self.now

    def set(self, **changes: Any) -> None:
        self.now = [replace(CALM_GPU, **changes)]


class Moments:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now
