"""Facts about the machine: containers respected, GPUs by NVML or GPUtil, nothing ever raises."""

import dataclasses
import json
import math
import subprocess
import sys
from collections import namedtuple
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


@pytest.mark.parametrize(
    ("quota", "cores"), [("50000", 1), ("150000", 1), ("290000", 2), ("1600000", 8), ("max", 8)]
)
def test_cores_are_affinity_and_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    write(tmp_path, "sys/fs/cgroup/cpu.max", f"{quota} 100000")
    found = hardware.processor(tmp_path)
    assert (found.num_cores, found.num_cores_machine) == (cores, 64)


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [
        (799, 300, Memory(799, 499, limited=True)),
        (799, 100, Memory(799, 500, limited=True)),  # other programs have the rest
        (800, 700, Memory(800, 500, limited=False)),
        (1 << 62, 0, Memory(800, 500, limited=False)),
    ],
)
def test_memory_is_the_container_s_where_that_is_less(
    limit: int, used: int, expected: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = SimpleNamespace(total=800, available=500)
    monkeypatch.setattr(hardware.psutil, "virtual_memory", lambda: machine)
    write(tmp_path, "sys/fs/cgroup/memory.max", str(limit))
    write(tmp_path, "sys/fs/cgroup/memory.current", str(used))
    assert hardware.memory(tmp_path) == expected


def test_disk_of_a_folder_not_made_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = {tmp_path: SimpleNamespace(total=9, used=4, free=5)}
    monkeypatch.setattr(hardware.shutil, "disk_usage", space.__getitem__)
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "runs/new", Path("runs/new"), tmp_path):
        assert hardware.disk_free_bytes(path) == 5

    def fail(_: Path) -> None:
        raise OSError

    monkeypatch.setattr(hardware.shutil, "disk_usage", fail)
    assert hardware.disk_free_bytes(tmp_path) is None


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
    closed: list[int] = []
    two = {"nvmlDeviceGetCount": lambda: 2, "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}"}
    two["nvmlShutdown"] = lambda: closed.append(1)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(**two))
    found = hardware.gpus()
    facts = ("Tesla T4", 37.0, GIB, 15 * GIB, 61.0, 70.5)
    assert found == [GPU(n, *facts, f"GPU-{n}", "580.1", (7, 5)) for n in (0, 1)]
    assert (found[0].memory_free_bytes, closed) == (14 * GIB, [1])
    newer = [dataclasses.replace(found[0], compute_capability=c) for c in ((8, 0), (7, 9))]
    assert [gpu.has_bf16 for gpu in newer] == [True, False]


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
    sizes = (1024 * MIB, 40960 * MIB)
    assert hardware.gpus() == [GPU(1, "A100", 25.0, *sizes, None, None, "GPU-2", "580.1", None)]


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


T4 = GPU(0, "Tesla T4", None, GIB, 15 * GIB, None, None, None, None, (7, 5))
H100 = GPU(1, "H100", None, 0, 80 * GIB, None, None, None, None, (9, 0))
UNKNOWN = GPU(2, "GPU", None, GIB, GIB, None, None, None, None, None)
MACHINE = Hardware(
    python="3.12.1",
    platform="Linux",
    processor=Processor("Xeon", 2, 4, ("amx_bf16",)),
    memory=Memory(4 * GIB, 3 * GIB, limited=True),
    disk_free_bytes=10 * GIB,
    nvidia_driver=True,
    gpus=(T4, H100, UNKNOWN),
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
        "GPU 1: core.machine_gpu(name=H100, free=80.0 GiB, total=80.0 GiB,"
        " capability=core.gpu_with_bf16(capability=9.0))",
        "GPU 2: core.machine_gpu(name=GPU, free=0.0 GiB, total=1.0 GiB, capability=)",
    ]


@pytest.mark.parametrize(
    ("driver", "reason"), [(False, "core.no_nvidia_driver"), (True, "core.no_gpu_responds")]
)
def test_describe_without_gpus(driver: bool, reason: str) -> None:
    machine = dataclasses.replace(MACHINE, gpus=(), nvidia_driver=driver, disk_free_bytes=None)
    machine = dataclasses.replace(
        machine,
        processor=Processor("Xeon", 2, 4, ()),
        memory=dataclasses.replace(MACHINE.memory, limited=False),
    )
    lines = hardware.describe(machine)
    assert lines[1].endswith(", bf16=core.bf16_emulated())")
    assert lines[2].endswith(", limit=)")
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


@pytest.mark.parametrize(
    ("seconds", "busy", "own", "share"),
    [(10.0, 5.0, 6.0, 0.0), (10.0, 12.0, 0.0, 1.0), (0.0, 0.0, 0.0, 0.0)],
)
def test_a_share_is_between_none_and_all(
    seconds: float, busy: float, own: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"time.monotonic": seconds, "_busy_seconds": busy, "_own_seconds": own}
    for name, value in values.items():
        found = iter([0.0, value])
        monkeypatch.setattr(f"{hardware.__name__}.{name}", lambda found=found: next(found))
    monkeypatch.setattr(hardware.os, "cpu_count", lambda: 1)
    assert hardware.OtherPrograms().share() == share


def test_a_processor_that_waits_is_not_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    times = namedtuple("times", "user system idle iowait")(1.0, 2.0, 4.0, 8.0)
    monkeypatch.setattr(hardware.psutil, "cpu_times", lambda: times)
    assert hardware._busy_seconds() == 3.0


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [
        (0, "0.0 GiB"),
        (GIB // 20, "0.05 GiB"),
        (int(0.0991 * GIB), "0.099 GiB"),
        (GIB // 8, "0.1 GiB"),
        (12345 * MIB, "12.1 GiB"),
    ],
)
def test_a_small_amount_has_more_digits(num_bytes: int, shown: str) -> None:
    assert hardware.gib(num_bytes) == shown


def test_a_process_that_was_started_counts_as_this_one() -> None:
    spin = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    before = hardware._own_seconds()
    assert subprocess.run([sys.executable, "-c", spin], check=True).returncode == 0
    assert hardware._own_seconds() - before >= 0.25  # counted in hundredths, each part rounded
    assert hardware.OtherPrograms().share() <= 1.0
