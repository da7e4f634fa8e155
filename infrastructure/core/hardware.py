"""Detection of this machine's processor, memory, disk, GPUs and Python version.

The values are resources that this process may use within the limits of a container (control groups)
and of the scheduler (affinity). Nothing is changed. No function imports torch, initializes CUDA or
raises if a fact cannot be read: the fact is then None, or the list of GPUs is empty. GPUs are read
from NVML (`nvidia-ml-py`), or else from GPUtil. All GPUs of the machine are included, regardless of
CUDA_VISIBLE_DEVICES. `root` arguments are for tests: a folder that stands for `/`.
"""

import contextlib
import math
import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import psutil

from infrastructure.core.cgroup import cpu_quota_cores, memory_limit
from infrastructure.core.messages import phrase
from infrastructure.core.nvidia_driver import nvidia_driver_present
from infrastructure.core.optional import is_installed, require

BF16_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")  # the last one is Arm's
Value = TypeVar("Value")
MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True)
class Processor:
    """The CPU. This process may use `num_cores` of the machine's `num_cores_machine` cores."""

    model: str
    num_cores: int
    num_cores_machine: int
    bf16_flags: tuple[str, ...]

    @property
    def has_bf16(self) -> bool:
        """True if the CPU has bf16 instructions. If False, bf16 works, but is emulated."""
        return bool(self.bf16_flags)


@dataclass(frozen=True)
class Memory:
    """The system memory in bytes. `limited` is True if a container's limit applies instead of the
    machine's memory.
    """

    total_bytes: int
    available_bytes: int
    limited: bool


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

    @property
    def memory_free_bytes(self) -> int:
        return self.memory_total_bytes - self.memory_used_bytes


@dataclass(frozen=True)
class GPU(GpuReading):
    """A reading of one GPU, with the facts about it that do not change."""

    uuid: str | None
    driver: str | None
    compute_capability: tuple[int, int] | None

    @property
    def has_bf16(self) -> bool | None:
        """True if the GPU has bf16 (Ampere or later, compute capability 8.0), None if unknown."""
        return None if self.compute_capability is None else self.compute_capability >= (8, 0)


@dataclass(frozen=True)
class Hardware:
    """The facts about the whole machine. `run.json` stores its `dataclasses.asdict`."""

    python: str
    platform: str
    processor: Processor
    memory: Memory
    disk_free_bytes: int | None
    nvidia_driver: bool
    gpus: tuple[GPU, ...]


def detect(folder: Path) -> Hardware:
    """Detect the hardware now. The free disk space is that at `folder`, which need not exist."""
    driver = nvidia_driver_present()
    return Hardware(
        python=platform.python_version(),
        platform=platform.platform(),
        processor=processor(),
        memory=memory(),
        disk_free_bytes=disk_free_bytes(folder),
        nvidia_driver=driver,
        gpus=tuple(gpus()) if driver else (),
    )


def processor(root: Path = Path("/")) -> Processor:
    """Return the CPU's model, usable cores and bf16 support."""
    fields = _cpuinfo(root)
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    machine = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine
    quota = cpu_quota_cores(root)
    if quota is not None:
        usable = min(usable, max(math.floor(quota), 1))
    return Processor(
        model=fields.get("model name") or platform.processor() or platform.machine(),
        num_cores=usable,
        num_cores_machine=machine,
        bf16_flags=tuple(flag for flag in BF16_FLAGS if flag in flags),
    )


def _cpuinfo(root: Path) -> dict[str, str]:
    """Return the fields of the first processor in /proc/cpuinfo; empty if there is no such file."""
    try:
        text = (root / "proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def memory(root: Path = Path("/")) -> Memory:
    """Return the machine's system memory, or a container's limit if the limit is smaller."""
    machine = psutil.virtual_memory()
    limit = memory_limit(root)
    if limit is None or limit.total_bytes >= machine.total:
        return Memory(machine.total, machine.available, limited=False)
    available = min(machine.available, limit.available_bytes)
    return Memory(limit.total_bytes, available, limited=True)


class OtherPrograms:
    """The CPU load of other programs on the machine, measured since this object was created."""

    def __init__(self) -> None:
        self._began = time.monotonic(), _busy_seconds(), _own_seconds()

    def share(self) -> float:
        """Return the share of all processors that other programs use, from 0 to 1.

        This process and its descendants do not count.
        """
        began, busy, own = self._began
        passed = (time.monotonic() - began) * (os.cpu_count() or 1)
        others = _busy_seconds() - busy - (_own_seconds() - own)
        return min(1.0, max(0.0, others / passed)) if passed else 0.0


def _busy_seconds() -> float:
    """Return the busy time of all processors since the machine started, in seconds."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


def _own_seconds() -> float:
    me, seconds = psutil.Process(), 0.0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has ended
            seconds += sum(process.cpu_times()[:4])
    return seconds


def disk_free_bytes(path: Path) -> int | None:
    """Return the bytes that this user can still write at `path`, or None if unknown.

    The path need not exist yet.
    """
    path = path.absolute()
    existing = next((p for p in (path, *path.parents) if p.exists()), path)
    try:
        return shutil.disk_usage(existing).free
    except OSError:
        return None


def gpus() -> list[GPU]:
    """Return the NVIDIA GPUs, read through NVML or GPUtil; empty if neither works."""
    by_nvml = _gpus_by_nvml()
    return gpus_by_gputil() if by_nvml is None else by_nvml


def _gpus_by_nvml() -> list[GPU] | None:
    """Return the GPUs, or None if NVML (package or driver) is not available."""
    nvml = open_nvml()
    if nvml is None:
        return None
    try:
        return [gpu for card in nvml_cards(nvml) if (gpu := _gpu_by_nvml(nvml, *card)) is not None]
    except nvml.NVMLError:
        return None
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def open_nvml() -> ModuleType | None:
    """Return the initialized module NVML, or None if the package or the driver is not available."""
    if not is_installed("pynvml"):
        return None
    try:
        nvml = require("pynvml", "GPU facts")
    except ImportError:  # another package of that name, broken
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml


def nvml_cards(nvml: ModuleType) -> list[tuple[int, object, str]]:
    """Return the index, handle and name of each GPU.

    Raises:
        nvml.NVMLError: if the driver does not answer.
    """
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    names = [_text(nvml.nvmlDeviceGetName(handle)) or "unknown" for handle in handles]
    return list(zip(range(len(handles)), handles, names, strict=True))


def read_by_nvml(nvml: ModuleType, index: int, handle: object, name: str) -> GpuReading | None:
    """Return a reading of one GPU, or None if it no longer responds."""
    space = _query(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    if space is None:
        return None
    load = _query(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    heat = _query(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
    power_milliwatts = _query(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
    return GpuReading(
        index=index,
        name=name,
        utilization_percent=None if load is None else float(load.gpu),
        memory_used_bytes=int(space.used),
        memory_total_bytes=int(space.total),
        temperature_celsius=None if heat is None else float(heat),
        power_watts=None if power_milliwatts is None else power_milliwatts / 1000,
    )


def _gpu_by_nvml(nvml: ModuleType, index: int, handle: object, name: str) -> GPU | None:
    reading = read_by_nvml(nvml, index, handle, name)
    if reading is None:
        return None
    capability = _query(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    return GPU(
        **vars(reading),
        uuid=_text(_query(nvml, nvml.nvmlDeviceGetUUID, handle)),
        driver=_text(_query(nvml, nvml.nvmlSystemGetDriverVersion)),
        compute_capability=None if capability is None else (capability[0], capability[1]),
    )


def _query(nvml: ModuleType, function: Callable[..., Value], *arguments: object) -> Value | None:
    try:
        return function(*arguments)
    except nvml.NVMLError:  # many cards do not report everything
        return None


def _text(value: str | bytes | None) -> str | None:
    """Return a string from NVML as `str`. Older versions of the package return bytes."""
    return value.decode() if isinstance(value, bytes) else value


def gpus_by_gputil() -> list[GPU]:
    """Return the GPUs from GPUtil, which runs `nvidia-smi`; empty if that program is missing."""
    if shutil.which("nvidia-smi") is None or not is_installed("GPUtil"):
        return []
    try:
        return [_gpu_by_gputil(gpu) for gpu in require("GPUtil", "GPU facts").getGPUs()]
    except (ImportError, ValueError, IndexError):
        # no distutils (Python 3.12 without setuptools), or nvidia-smi output that it cannot parse
        return []


def _gpu_by_gputil(gpu: Any) -> GPU:
    return GPU(
        index=int(gpu.id),
        name=gpu.name,
        uuid=gpu.uuid,
        driver=gpu.driver,
        memory_total_bytes=int(gpu.memoryTotal * MIB),
        memory_used_bytes=int(gpu.memoryUsed * MIB),
        utilization_percent=_known(gpu.load * 100),
        temperature_celsius=_known(gpu.temperature),
        power_watts=None,
        compute_capability=None,
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def describe(hardware: Hardware) -> list[str]:
    """Return lines that describe the machine to the user, one for each item."""
    python = phrase("core.machine_python", version=hardware.python, platform=hardware.platform)
    return [python, *(f"{subject}: {text}" for subject, text in machine_facts(hardware))]


def machine_facts(hardware: Hardware) -> list[tuple[str, str]]:
    """Return (subject, text) for CPU, memory, disk and each GPU of the machine."""
    cpu, ram = hardware.processor, hardware.memory
    bf16 = phrase("core.bf16_emulated")
    if cpu.has_bf16:
        bf16 = phrase("core.bf16_in_hardware", flags=", ".join(cpu.bf16_flags))
    limit = phrase("core.memory_limited_by_container") if ram.limited else ""
    processor = phrase(
        "core.machine_cpu",
        model=cpu.model,
        num_cores=cpu.num_cores,
        num_cores_machine=cpu.num_cores_machine,
        bf16=bf16,
    )
    memory = phrase(
        "core.machine_memory",
        available=gib(ram.available_bytes),
        total=gib(ram.total_bytes),
        limit=limit,
    )
    disk = phrase("core.machine_disk_unknown")
    if hardware.disk_free_bytes is not None:
        disk = phrase("core.machine_disk", free=gib(hardware.disk_free_bytes))
    return [("CPU", processor), ("memory", memory), ("disk", disk), *_gpu_facts(hardware)]


def _gpu_facts(hardware: Hardware) -> list[tuple[str, str]]:
    if not hardware.gpus:
        code = "core.no_gpu_responds" if hardware.nvidia_driver else "core.no_nvidia_driver"
        return [("GPU", phrase("core.machine_without_gpu", reason=phrase(code)))]
    return [
        (
            f"GPU {gpu.index}",
            phrase(
                "core.machine_gpu",
                name=gpu.name,
                free=gib(gpu.memory_free_bytes),
                total=gib(gpu.memory_total_bytes),
                capability=_describe_capability(gpu),
            ),
        )
        for gpu in hardware.gpus
    ]


def _describe_capability(gpu: GPU) -> str:
    if gpu.compute_capability is None:
        return ""
    major, minor = gpu.compute_capability
    code = "core.gpu_with_bf16" if gpu.has_bf16 else "core.gpu_without_bf16"
    return phrase(code, capability=f"{major}.{minor}")


def gib(num_bytes: int) -> str:
    """Format bytes as `12.3 GiB`, with more digits for small amounts, such as `0.047 GiB`."""
    amount = num_bytes / GIB
    return f"{amount:.2g} GiB" if 0 < amount < 0.1 else f"{amount:.1f} GiB"
