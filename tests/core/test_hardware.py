"""Facts about the machine: containers respected, GPUs by NVML or GPUtil, nothing ever raises."""

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from infrastructure.core import hardware
from infrastructure.core.hardware import GIB, GPU, MIB, Hardware, Memory, Processor

CPUINFO = """processor\t: 0
model name\t: Some Xeon @ 2.00GHz
flags\t\t: fpu avx512f {flag} amx_tile

processor\t: 1
model name\t: Another
"""


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_processor_reads_model_and_flags(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", CPUINFO.format(flag="avx512_bf16"))
    found = hardware.processor(tmp_path)
    assert found.model == "Some Xeon @ 2.00GHz"
    assert found.bf16_flags == ("avx512_bf16",)
    assert found.has_bf16


def test_processor_without_bf16(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", CPUINFO.format(flag="avx512_bf16x"))
    assert not hardware.processor(tmp_path).has_bf16


def test_arm_names_its_flags_differently(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", "processor : 0\nFeatures : fp asimd bf16\n")
    assert hardware.processor(tmp_path).bf16_flags == ("bf16",)


def test_processor_without_proc_still_answers(tmp_path: Path) -> None:
    found = hardware.processor(tmp_path)
    assert found.model
    assert found.num_cores >= 1


@pytest.mark.parametrize(("quota", "cores"), [("50000", 1), ("150000", 1), ("max", 8)])
def test_cores_are_affinity_and_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    write(tmp_path, "sys/fs/cgroup/cpu.max", f"{quota} 100000")
    found = hardware.processor(tmp_path)
    assert (found.num_cores, found.num_cores_machine) == (cores, 64)


def test_memory_is_the_container_s_where_that_is_less(tmp_path: Path) -> None:
    write(tmp_path, "sys/fs/cgroup/memory.max", str(GIB))
    write(tmp_path, "sys/fs/cgroup/memory.current", str(GIB // 4))
    found = hardware.memory(tmp_path)
    assert found.limited
    assert found.total_bytes == GIB
    assert found.available_bytes <= GIB - GIB // 4


def test_memory_limit_above_the_machine_s_does_not_bind(tmp_path: Path) -> None:
    write(tmp_path, "sys/fs/cgroup/memory.max", str(1 << 62))
    write(tmp_path, "sys/fs/cgroup/memory.current", "0")
    assert not hardware.memory(tmp_path).limited


def test_disk_of_a_folder_not_made_yet(tmp_path: Path) -> None:
    found = hardware.disk_free_bytes(tmp_path / "runs" / "new")
    assert found is not None
    assert found > 0


class FakeNVMLError(Exception):
    """Stands for pynvml.NVMLError."""


def fail(*_: object) -> object:
    raise FakeNVMLError("Not Supported")


def fake_nvml(**replaced: object) -> ModuleType:
    """A module like pynvml with one GPU; functions can be replaced by name."""
    module = ModuleType("pynvml")
    module.__spec__ = SimpleNamespace(name="pynvml")  # type: ignore[assignment]
    functions: dict[str, object] = {
        "NVMLError": FakeNVMLError,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: b"Tesla T4",
        "nvmlDeviceGetUUID": lambda handle: "GPU-1",
        "nvmlSystemGetDriverVersion": lambda: "580.1",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=15 * GIB, used=GIB),
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=37, memory=5),
        "nvmlDeviceGetPowerUsage": lambda handle: 70_500,
        "nvmlDeviceGetTemperature": lambda handle, sensor: 61,
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (7, 5),
    }
    for name, value in {**functions, **replaced}.items():
        setattr(module, name, value)
    return module


@pytest.fixture
def no_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty PATH, whose folder a test may fill."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_gpus_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    (gpu,) = hardware.gpus()
    assert gpu.name == "Tesla T4"
    assert gpu.memory_free_bytes == 14 * GIB
    assert (gpu.utilization_percent, gpu.temperature_celsius, gpu.power_watts) == (37.0, 61, 70.5)
    assert gpu.compute_capability == (7, 5)
    assert gpu.has_bf16 is False


def test_what_a_card_does_not_report_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    questions = ("UtilizationRates", "PowerUsage", "Temperature", "CudaComputeCapability", "UUID")
    silent = {f"nvmlDeviceGet{question}": fail for question in questions}
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(**silent))
    (gpu,) = hardware.gpus()
    assert gpu.utilization_percent is gpu.power_watts is gpu.temperature_celsius is gpu.uuid is None
    assert gpu.has_bf16 is None


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetMemoryInfo"])
def test_no_driver_means_no_gpus(
    monkeypatch: pytest.MonkeyPatch, no_nvidia_smi: Path, broken: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(**{broken: fail}))
    assert hardware.gpus() == []


def test_a_broken_nvml_package_is_no_error(
    monkeypatch: pytest.MonkeyPatch, no_nvidia_smi: Path
) -> None:
    (no_nvidia_smi / "pynvml.py").write_text("import no_such_module\n")
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.syspath_prepend(str(no_nvidia_smi))
    assert hardware.gpus() == []


def gputil(monkeypatch: pytest.MonkeyPatch, folder: Path, get_gpus: object) -> None:
    """Only GPUtil, and an `nvidia-smi` for it to call, are there."""
    (folder / "nvidia-smi").write_text("#!/bin/sh\n")
    (folder / "nvidia-smi").chmod(0o755)
    module = ModuleType("GPUtil")
    module.__spec__ = SimpleNamespace(name="GPUtil")  # type: ignore[assignment]
    module.getGPUs = get_gpus  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "GPUtil", module)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlInit=fail))


def test_gpus_by_gputil(monkeypatch: pytest.MonkeyPatch, no_nvidia_smi: Path) -> None:
    card = SimpleNamespace(
        id="1", name="A100", uuid="GPU-2", driver="580.1", load=0.25, temperature=math.nan
    )
    card.memoryTotal, card.memoryUsed = 40960.0, 1024.0
    gputil(monkeypatch, no_nvidia_smi, lambda: [card])
    (gpu,) = hardware.gpus()
    assert (gpu.index, gpu.name) == (1, "A100")
    assert gpu.memory_total_bytes == 40960 * MIB
    assert gpu.utilization_percent == 25.0
    assert gpu.temperature_celsius is None


def test_gputil_that_cannot_read_nvidia_smi(
    monkeypatch: pytest.MonkeyPatch, no_nvidia_smi: Path
) -> None:
    def unreadable() -> list[object]:
        raise ValueError("could not convert string to float: '[N/A]'")

    gputil(monkeypatch, no_nvidia_smi, unreadable)
    assert hardware.gpus() == []


def test_gputil_is_not_used_without_nvidia_smi(
    monkeypatch: pytest.MonkeyPatch, no_nvidia_smi: Path
) -> None:
    gputil(monkeypatch, no_nvidia_smi, lambda: pytest.fail("asked"))
    (no_nvidia_smi / "nvidia-smi").unlink()
    assert hardware.gpus() == []


T4 = GPU(0, "Tesla T4", None, None, 15 * GIB, GIB, None, None, None, (7, 5))
MACHINE = Hardware(
    python="3.12.1",
    platform="Linux",
    processor=Processor("Xeon", 2, 4, ("amx_bf16",)),
    memory=Memory(4 * GIB, 3 * GIB, limited=True),
    disk_free_bytes=10 * GIB,
    nvidia_driver=True,
    gpus=(T4,),
)


def test_describe_has_a_line_for_each_thing() -> None:
    assert hardware.describe(MACHINE) == [
        "core.machine_python(version=3.12.1, platform=Linux)",
        "CPU: core.machine_cpu(model=Xeon, num_cores=2, num_cores_machine=4,"
        " bf16=core.bf16_in_hardware(flags=amx_bf16))",
        "memory: core.machine_memory(available=3.0 GiB, total=4.0 GiB,"
        " limit=core.memory_limited_by_container())",
        "disk: core.machine_disk(free=10.0 GiB)",
        "GPU 0: core.machine_gpu(name=Tesla T4, free=14.0 GiB, total=15.0 GiB,"
        " capability=core.gpu_without_bf16(capability=7.5))",
    ]


@pytest.mark.parametrize(
    ("driver", "reason"), [(False, "core.no_nvidia_driver"), (True, "core.no_gpu_responds")]
)
def test_describe_without_gpus(driver: bool, reason: str) -> None:
    machine = dataclasses.replace(MACHINE, gpus=(), nvidia_driver=driver, disk_free_bytes=None)
    lines = hardware.describe(machine)
    assert lines[-1] == f"GPU: core.machine_without_gpu(reason={reason}())"
    assert "disk: core.machine_disk_unknown()" in lines


def test_this_machine_s_facts_are_json(tmp_path: Path) -> None:
    facts = dataclasses.asdict(hardware.detect(tmp_path))
    assert json.loads(json.dumps(facts))["processor"]["num_cores"] >= 1


def test_what_this_process_computes_is_not_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two processors in ten seconds: busy for 14, this process for 4."""
    moments, busy, own = iter([5.0, 15.0]), iter([100.0, 114.0]), iter([3.0, 7.0])
    monkeypatch.setattr(hardware.time, "monotonic", lambda: next(moments))
    monkeypatch.setattr(hardware.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(hardware, "_busy_seconds", lambda: next(busy))
    monkeypatch.setattr(hardware, "_own_seconds", lambda: next(own))
    assert hardware.OtherPrograms().share() == pytest.approx(0.5)


def test_a_process_that_was_started_counts_as_this_one() -> None:
    spin = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    before = hardware._own_seconds()
    assert subprocess.run([sys.executable, "-c", spin], check=True).returncode == 0
    assert hardware._own_seconds() - before >= 0.25  # counted in hundredths, each part rounded
    assert hardware.OtherPrograms().share() <= 1.0
