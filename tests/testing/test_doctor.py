"""The doctor finds what is missing, too old, mismatched or known to fail, and names the remedy."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.field_help import choices, words_taken
from infrastructure.config.schema import schema_of
from infrastructure.core.hardware import GIB, GPU, Hardware, Memory, Processor, machine_facts
from infrastructure.core.messages import phrase, words_of
from infrastructure.core.optional import DISTRIBUTION
from infrastructure.testing import doctor
from infrastructure.testing.doctor import NEEDED_FOR, Diagnosis, Installation
from tests.testing.fake_packages import install, install_temper, install_torch

CPU_MACHINE = Hardware(
    python="3.12.1",
    platform="Linux",
    processor=Processor("Xeon", 2, 2, ()),
    memory=Memory(16 * GIB, 12 * GIB, limited=False),
    disk_free_bytes=50 * GIB,
    nvidia_driver=False,
    gpus=(),
)
T4 = GPU(0, "Tesla T4", None, GIB, 15 * GIB, None, None, None, None, (7, 5))
CPU = Diagnosis("ok", "CPU", "fine")
GPU_MACHINE = dataclasses.replace(CPU_MACHINE, nvidia_driver=True, gpus=(T4,))


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    """A folder of packages that are all as tested."""
    install_temper(
        tmp_path,
        needed=("torch>=2.11,<2.14", "peft>=0.20"),
        tested=("torch==2.13.0", "peft==0.21.2", "trl==1.14.2", "torchao==0.18.0"),
        colab=("torch>=2.11,<2.14", "peft==0.20.0", "trl==0.29.1", "torchao==0.18.0"),
    )
    install_torch(tmp_path, "2.13.0+cpu", cuda=None)
    for name, version in {"peft": "0.21.2", "trl": "1.14.2", "torchao": "0.18.0"}.items():
        install(tmp_path, name, version)
    return tmp_path


def replace(folder: Path, name: str, version: str | None) -> None:
    """Put another version of `name` into `folder`, or none."""
    (old,) = folder.glob(f"{name.replace('-', '_')}-*.dist-info")
    (old / "METADATA").unlink()
    old.rmdir()
    if version is not None:
        install(folder, name, version)


def diagnose(folder: Path, machine: Hardware = CPU_MACHINE) -> list[Diagnosis]:
    return doctor.diagnose(machine, Installation([str(folder)]))


def about(subject: str, findings: list[Diagnosis]) -> Diagnosis:
    (finding,) = [finding for finding in findings if finding.subject == subject]
    return finding


def versions_text(matching: int, total: int, on: str = "") -> str:
    about_versions = f"num_matching={matching}, num_packages={total}, on={on}"
    return f"testing.num_tested_versions({about_versions})"


def test_a_healthy_machine(healthy: Path) -> None:
    findings = diagnose(healthy)
    no_gpu = "core.machine_without_gpu(reason=core.no_nvidia_driver())"
    assert [(finding.subject, finding.text) for finding in findings] == [
        ("Python", "3.12.1, Linux"),
        *machine_facts(CPU_MACHINE)[:2],  # processor and memory
        ("disk", "testing.disk_free(size=50.0 GiB)"),
        ("GPU", no_gpu),
        ("versions", versions_text(4, 4)),
        ("PyTorch", "2.13.0+cpu, testing.cpu_build()"),
    ]
    assert {(finding.level, finding.remedy) for finding in findings} == {("ok", "")}
    assert doctor.render(findings).endswith("\ntesting.ready_to_train()")
    assert doctor.exit_code(findings) == 0


def test_a_missing_package_prevents_training(healthy: Path) -> None:
    replace(healthy, "peft", None)
    findings = diagnose(healthy)
    missing = Diagnosis("fail", "peft", "testing.package_unusable()", "pip install 'peft==0.21.2'")
    assert about("peft", findings) == missing
    assert doctor.exit_code(findings) == 1
    for number in (1, 2):
        verdict = f"testing.not_ready_to_train(num_problems={number})"
        assert doctor.verdict([*findings, missing][: len(findings) - 1 + number]) == verdict
    assert doctor.render([missing, CPU]) == (
        "FAIL  peft: testing.package_unusable()\n      → pip install 'peft==0.21.2'\n"
        "ok    CPU: fine\ntesting.not_ready_to_train(num_problems=1)"
    )


def test_a_broken_package_does_not_break_the_doctor(healthy: Path) -> None:
    (healthy / "peft-0.21.2.dist-info/METADATA").write_text("")
    assert about("peft", diagnose(healthy)).level == "fail"


def test_a_version_outside_the_bounds_prevents_training(healthy: Path) -> None:
    replace(healthy, "peft", "0.19.0")
    finding = next(f for f in diagnose(healthy) if f.subject == "peft")
    text = "testing.package_version_unsupported(version=0.19.0, specifier=>=0.20)"
    assert finding == Diagnosis("fail", "peft", text, "pip install 'peft==0.21.2'")


@pytest.mark.parametrize(
    ("version", "level"),
    [("0.21.0rc1", "warn"), ("0.22.0.dev3", "warn"), ("0.20.0rc1", "fail"), ("0.21.2", None)],
)
def test_a_pre_release_is_judged_by_its_number(
    healthy: Path, version: str, level: str | None
) -> None:
    """Colab and nightly builds have them: within the bounds, one can train."""
    replace(healthy, "peft", version)
    levels = {finding.level for finding in diagnose(healthy) if finding.subject == "peft"}
    assert max(levels, key=["warn", "fail"].index, default=None) == level


def test_a_tested_pre_release_is_as_tested(tmp_path: Path) -> None:
    install_temper(tmp_path, needed=("torch>=2.11",), tested=("torch>=2.13,<2.14",), colab=())
    install_torch(tmp_path, "2.13.1.dev20261101", cuda=None)
    assert about("versions", diagnose(tmp_path)).level == "ok"


def test_an_untested_version_is_a_warning(healthy: Path) -> None:
    replace(healthy, "trl", "1.16.0")
    findings = diagnose(healthy)
    untested = "testing.package_version_untested(version=1.16.0, specifier=1.14.2)"
    assert about("trl", findings) == Diagnosis("warn", "trl", untested, "pip install 'trl==1.14.2'")
    assert about("versions", findings) == Diagnosis("note", "versions", versions_text(3, 4))
    assert doctor.verdict(findings) == "testing.ready_with_warnings(num_warnings=1)"
    assert doctor.exit_code(findings) == 0


def test_a_missing_optional_package_is_named_with_its_use(healthy: Path) -> None:
    replace(healthy, "torchao", None)
    findings = diagnose(healthy)
    finding = about("torchao", findings)
    assert finding.level == "note"
    assert about("versions", findings).text == versions_text(3, 4)
    assert doctor.verdict(findings) == "testing.ready_to_train()"
    assert finding.text == "testing.optional_package_missing(purpose=testing.purpose_fp8())"
    assert finding.remedy == "pip install 'torchao==0.18.0'"


def test_a_colab_runtime_is_held_against_colab_s_column(healthy: Path) -> None:
    replace(healthy, "peft", "0.20.0")
    replace(healthy, "trl", "0.29.1")
    findings = diagnose(healthy)
    assert about("versions", findings).text == versions_text(4, 4, " on Colab")


def test_temper_run_from_a_folder_is_reported(healthy: Path) -> None:
    replace(healthy, "temper-train", None)
    findings = diagnose(healthy)
    remedy = "pip install --no-deps -e . (in Temper's folder)"
    expected = Diagnosis("warn", "temper", "testing.temper_not_a_package()", remedy)
    assert about("temper", findings) == expected
    assert "versions" not in [finding.subject for finding in findings]


@pytest.mark.parametrize(
    ("python", "level"),
    [("3.10.9", "fail"), ("3.11.7", "ok"), ("3.13.0", "ok"), ("3.14.0", "warn")],
)
def test_python(healthy: Path, python: str, level: str) -> None:
    machine = dataclasses.replace(CPU_MACHINE, python=python)
    tested = f"(python={python}, oldest=3.11, newest=3.13)"
    texts = {"fail": f"testing.python_too_old{tested}", "warn": f"testing.python_too_new{tested}"}
    text = texts.get(level, f"{python}, Linux")
    assert about("Python", diagnose(healthy, machine)) == Diagnosis(level, "Python", text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("free_bytes", "level", "reason"),
    [
        (5 * GIB, "ok", ""),
        (5 * GIB - 1, "warn", "testing.disk_low_for_checkpoints(size=5.0 GiB)"),
        (GIB // 4, "warn", "testing.disk_low_for_checkpoints(size=5.0 GiB)"),
        (GIB // 4 - 1, "fail", "testing.disk_below_minimum(minimum=256.0 MiB)"),
        (None, "ok", ""),
    ],
)
def test_disk(free_bytes: int | None, level: str, reason: str) -> None:
    machine = dataclasses.replace(CPU_MACHINE, disk_free_bytes=free_bytes)
    found = about("disk", [*doctor.check_machine(machine)])
    remedy = f"testing.free_disk_space(reason={reason})" if reason else ""
    assert (found.level, found.remedy) == (level, remedy)
    assert (found.text == "core.machine_disk_unknown()") is (free_bytes is None)


@pytest.mark.parametrize(
    ("available", "level", "remedy"),
    [(2 * GIB, "ok", ""), (2 * GIB - 1, "warn", "testing.low_memory()")],
)
def test_little_memory_is_a_warning(available: int, level: str, remedy: str) -> None:
    memory = Memory(16 * GIB, available, limited=True)
    machine = dataclasses.replace(CPU_MACHINE, memory=memory)
    found = about("memory", [*doctor.check_machine(machine)])
    assert (found.level, found.remedy) == (level, remedy)


def test_a_cpu_build_beside_a_gpu_is_reported(healthy: Path) -> None:
    text = "testing.pytorch_without_cuda(version=2.13.0+cpu, build=testing.cpu_build())"
    expected = Diagnosis("warn", "PyTorch", text, "pip install 'torch===2.13.0'")
    assert about("PyTorch", diagnose(healthy, GPU_MACHINE)) == expected


def test_a_cuda_build_beside_a_gpu_is_right(healthy: Path) -> None:
    (healthy / "torch/version.py").write_text("cuda: Optional[str] = '13.0'\n")
    finding = about("PyTorch", diagnose(healthy, GPU_MACHINE))
    assert (finding.level, finding.text) == (
        "ok",
        "2.13.0+cpu, testing.cuda_build(cuda=13.0)",
    )


def test_a_driver_without_an_answering_gpu_is_reported(healthy: Path) -> None:
    machine = dataclasses.replace(CPU_MACHINE, nvidia_driver=True)
    text = "core.machine_without_gpu(reason=core.no_gpu_responds())"
    expected = Diagnosis("warn", "GPU", text, "testing.check_nvidia_smi()")
    assert about("GPU", diagnose(healthy, machine)) == expected


def test_triton_without_a_gpu_is_a_trap(healthy: Path) -> None:
    install(healthy, "triton", "3.6.0")
    text, remedy = "testing.triton_without_gpu()", "pip uninstall triton"
    assert about("triton", diagnose(healthy)) == Diagnosis("warn", "triton", text, remedy)
    assert not [f for f in diagnose(healthy, GPU_MACHINE) if f.subject == "triton"]


def test_an_old_torchao_prevents_lora(healthy: Path) -> None:
    replace(healthy, "torchao", "0.10.0")
    failed = [f for f in diagnose(healthy) if f.subject == "torchao" and f.level == "fail"]
    text = "testing.torchao_too_old(peft=0.21.2, torchao=0.10.0)"
    assert failed == [Diagnosis("fail", "torchao", text, "pip install 'torchao>=0.16'")]
    for torchao, peft in (("0.16", "0.21.2"), ("0.10.0", "0.18.9"), ("0.10.0", None)):
        replace(healthy, "torchao", torchao)
        replace(healthy, "peft", peft)
        assert "fail" not in [f.level for f in diagnose(healthy) if f.subject == "torchao"]


@pytest.mark.parametrize(("version", "is_reported"), [("0.26.0", True), ("0.26.0+cpu", False)])
def test_a_cuda_torchvision_beside_a_cpu_torch(
    healthy: Path, version: str, is_reported: bool
) -> None:
    install(healthy, "torchvision", version)
    text = f"testing.torchvision_mismatch(version={version})"
    expected = Diagnosis("warn", "torchvision", text, "pip uninstall torchvision")
    findings = [f for f in diagnose(healthy) if f.subject == "torchvision"]
    assert findings == [expected][:is_reported]


@pytest.mark.parametrize(("python", "is_reported"), [("3.11.7", False), ("3.12.1", True)])
def test_gputil_needs_setuptools_on_newer_pythons(
    healthy: Path, python: str, is_reported: bool
) -> None:
    install(healthy, "GPUtil", "1.4.0")
    machine = dataclasses.replace(CPU_MACHINE, python=python)
    text, remedy = "testing.distutils_missing()", "pip install setuptools"
    findings = [f for f in diagnose(healthy, machine) if f.subject == "gputil"]
    assert findings == [Diagnosis("warn", "gputil", text, remedy)][:is_reported]
    install(healthy, "setuptools", "84.2.1")
    assert not [f for f in diagnose(healthy, machine) if f.subject == "gputil"]


@pytest.mark.parametrize(("machine", "is_missed"), [(CPU_MACHINE, False), (GPU_MACHINE, True)])
def test_what_reads_gpus_is_missed_beside_one_alone(
    tmp_path: Path, machine: Hardware, is_missed: bool
) -> None:
    install_temper(tmp_path, needed=(), tested=("gputil==1.4.0",), colab=())
    findings = doctor.check_tested_versions(Installation([str(tmp_path)]), machine.nvidia_driver)
    assert ("gputil" in [finding.subject for finding in findings]) == is_missed


def test_unsloth_s_bounds(healthy: Path) -> None:
    install(healthy, "unsloth", "2026.10.9", ("trl<=1.15.0", "tyro", "triton", "certifi>=2099"))
    bounds = about("unsloth", diagnose(healthy))
    text = phrase(
        "testing.requirements_unmet",
        version="2026.10.9",
        requirements=[phrase("testing.requirement_missing", requirement="tyro")],
    )
    assert bounds == Diagnosis("warn", "unsloth", text, doctor.UNSLOTH_LINE)
    install(healthy, "tyro", "1.0")
    install(healthy, "unsloth_zoo", "2026.10.1", ("tyro>=2",))
    text = "testing.unsloth_compatible(version=2026.10.9)"
    assert about("unsloth", diagnose(healthy)) == Diagnosis("ok", "unsloth", text)
    assert about("unsloth_zoo", diagnose(healthy)).level == "warn"
    replace(healthy, "trl", "1.16.0")
    assert (
        phrase("testing.requirement_unmet", requirement="trl<=1.15.0", version="1.16.0")
        in about("unsloth", diagnose(healthy)).text
    )


def test_the_command_imports_none_of_what_it_judges() -> None:
    probe = """
import sys
from infrastructure.testing import doctor
code = doctor.main()
heavy = {"torch", "transformers", "peft", "unsloth", "numpy"} & set(sys.modules)
assert not heavy, heavy
print("exit code", code)
"""
    root = Path(doctor.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", probe],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "PyTorch: " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("exit code")


def test_it_knows_what_each_package_of_the_columns_is_for() -> None:
    installation = Installation()
    needed = {r.name for r in installation.requirements(DISTRIBUTION)}
    columns = [installation.requirements(DISTRIBUTION, extra) for extra in ("tested", "colab")]
    listed = {r.name for column in columns for r in column}
    assert listed - needed == {*NEEDED_FOR}


def test_it_promises_nothing_that_is_not_there() -> None:
    """Of each package: the setting or the module that its purpose is."""
    field = schema_of(DeploymentConfig).fields
    assert "fp8" in words_taken(field["training.mixed_precision"].info)
    assert "fp8" in str(words_of(NEEDED_FOR["torchao"]))
    assert {"4bit", "8bit"} <= {*choices(field["model.quantization"].info)}
    optimizers = words_taken(field["training.optimizer"].info)
    assert any("8bit" in name for name in optimizers)
    assert any("paged" in name for name in optimizers)
    assert "unsloth" in choices(field["model.backend"].info)
    assert not any("quantization-aware" in str(words_of(code)) for code in NEEDED_FOR.values())


def test_a_reader_of_some_files_is_no_need(tmp_path: Path) -> None:
    install_temper(
        tmp_path,
        needed=("torch>=2.11,<2.14", "openpyxl>=3.1"),
        tested=("torch==2.13.0", "openpyxl==3.1.5"),
        colab=(),
    )
    install_torch(tmp_path, "2.13.0+cpu", cuda=None)
    findings = diagnose(tmp_path)
    assert doctor.exit_code(findings) == 0
    assert about("versions", findings).text == versions_text(1, 2)
    missing = about("openpyxl", findings)
    text = "testing.optional_package_unusable(purpose=testing.purpose_excel())"
    assert missing == Diagnosis("warn", "openpyxl", text, "pip install 'openpyxl==3.1.5'")


@pytest.fixture
def here(tmp_path: Path) -> Installation:
    return Installation([str(tmp_path)])


def test_version(tmp_path: Path, here: Installation) -> None:
    install(tmp_path, "dwave-samplers", "1.8.0")
    assert here.version("dwave_samplers") == Version("1.8.0")
    assert here.version("dimod") is None


@pytest.mark.parametrize("metadata", [None, "", "Name: peft\nVersion: not a version\n"])
def test_broken_metadata_is_no_version(
    tmp_path: Path, here: Installation, metadata: str | None
) -> None:
    info = tmp_path / "peft-0.21.2.dist-info"
    info.mkdir()
    if metadata is not None:
        (info / "METADATA").write_text(metadata)
    assert here.version("peft") is None


def test_requirements_of_the_base_and_of_an_extra(tmp_path: Path, here: Installation) -> None:
    lines = ("numpy>=2", 'torch==2.13.0; extra == "tested"', 'winonly; sys_platform == "win32"')
    install(tmp_path, "temper", "0.1.0", lines)
    assert [str(r) for r in here.requirements("temper")] == ["numpy>=2"]
    assert [r.name for r in here.requirements("temper", extra="tested")] == ["torch"]
    assert here.requirements("nothing") == []


def test_a_stranger_s_unreadable_requirement_is_left_out(
    tmp_path: Path, here: Installation
) -> None:
    install(tmp_path, "old", "1.0", ("numpy (>=1.0,", "torch"))
    assert [r.name for r in here.requirements("old")] == ["torch"]


@pytest.mark.parametrize("cuda", [None, "13.0"])
def test_what_torch_was_built_for(tmp_path: Path, here: Installation, cuda: str | None) -> None:
    install_torch(tmp_path, "2.13.0", cuda)
    assert here.torch_cuda() == cuda


def test_torch_without_its_files_is_no_cuda_build(tmp_path: Path, here: Installation) -> None:
    assert here.torch_cuda() is None
    install(tmp_path, "torch", "2.13.0")
    assert here.torch_cuda() is None
