"""The checks of `temper doctor`: whether this machine and its packages are fit for training.

They compare the installed versions with the tested ones, check memory, disk and GPUs, and detect
combinations of packages that are known to fail. They do not import the packages that they check,
and change nothing. Also available as `python -m infrastructure.testing.doctor`.
"""

import importlib.metadata
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.hardware import GIB, Hardware, detect, machine_facts
from infrastructure.core.messages import phrase
from infrastructure.core.optional import DISTRIBUTION, OLDEST_TORCHAO_FOR_PEFT
from infrastructure.monitoring.drawing.formatting import format_bytes

# The installed packages and their requirements, read from metadata without importing a package.
#
# This is quick, and works even if a package cannot be imported, or breaks others when imported. The
# tested versions come from Temper's own metadata, into which the build copies the requirement files
# (the extras `tested` and `colab` of pyproject.toml).

CUDA_LINE = re.compile(r"^cuda\b[^=]*=\s*['\"](?P<version>[^'\"]+)['\"]", re.MULTILINE)


class Installation:
    """The packages that are installed in the directories of `search_path`.

    By default, these are the directories of this interpreter. The metadata of each package is read
    once, since parsing it takes milliseconds.
    """

    def __init__(self, search_path: Sequence[str] | None = None) -> None:
        self._search_path = list(sys.path if search_path is None else search_path)
        self._versions: dict[str, Version | None] = {}
        self._requirements: dict[str, list[Requirement]] = {}

    def version(self, package: str) -> Version | None:
        """Return a package's installed version; None if it is missing or its metadata is broken."""
        if package not in self._versions:
            self._versions[package] = self._read_version(package)
        return self._versions[package]

    def _read_version(self, package: str) -> Version | None:
        distribution = self._distribution(package)
        metadata = None if distribution is None else distribution.metadata
        if metadata is None or "Version" not in metadata:
            return None
        try:
            return Version(metadata["Version"])
        except InvalidVersion:
            return None

    def requirements(self, package: str, extra: str = "") -> list[Requirement]:
        """Return the requirements of `package`, or of its `extra`, on this platform."""
        if package not in self._requirements:
            distribution = self._distribution(package)
            lines = (distribution and distribution.requires) or []
            self._requirements[package] = [r for r in map(_parsed, lines) if r]
        return [
            r
            for r in self._requirements[package]
            if _applies(r, extra) and not (extra and _applies(r, ""))
        ]

    def torch_cuda(self) -> str | None:
        """Return the CUDA version that the installed PyTorch was built for; None for a CPU
        build."""
        distribution = self._distribution("torch")
        if distribution is None:
            return None
        try:
            text = Path(str(distribution.locate_file("torch/version.py"))).read_text()
        except OSError:
            return None
        match = CUDA_LINE.search(text)
        return match["version"] if match else None

    def _distribution(self, package: str) -> importlib.metadata.Distribution | None:
        distributions = importlib.metadata.distributions(name=package, path=self._search_path)
        return next(iter(distributions), None)


def _parsed(line: str) -> Requirement | None:
    try:
        return Requirement(line)
    except InvalidRequirement:  # outdated metadata of another package; not Temper's to fix
        return None


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def accepts(requirement: Requirement, version: Version) -> bool:
    """Return whether `version` is within the requirement's bounds; pre-releases are allowed."""
    return requirement.specifier.contains(version, prereleases=True)


Level = Literal["ok", "note", "warn", "fail"]
MARKS: dict[Level, str] = {"ok": "ok  ", "note": "note", "warn": "WARN", "fail": "FAIL"}

OLDEST_PYTHON, NEWEST_TESTED_PYTHON = (3, 11), (3, 13)
LOW_MEMORY_BYTES = 2 * GIB
LOW_DISK_BYTES, MINIMUM_DISK_BYTES = 5 * GIB, GIB // 4

# What optional packages are needed for.
NEEDED_FOR = {
    "bitsandbytes": "testing.purpose_quantization",
    "fsspec": "testing.purpose_remote_backups",
    "gputil": "testing.purpose_gpu_facts",
    "ipywidgets": "testing.purpose_notebook_forms",
    "pandas": "testing.purpose_colab_packages",
    "protobuf": "testing.purpose_colab_packages",
    "setuptools": "testing.purpose_gputil",
    "torchao": "testing.purpose_fp8",
    "trl": "testing.purpose_trl",
}
# Declared as required, so that users' files can be read at once; nothing else needs them.
READERS = {
    "gdown": "testing.purpose_drive_data",
    "h5py": "testing.purpose_hdf5",
    "openpyxl": "testing.purpose_excel",
}
# Only GPU facts need these.
FOR_GPUS = {"gputil", "setuptools"}
TESTED_ON = {"tested": "", "colab": " on Colab"}
# unsloth requires these, but training text models needs none of them: requirements-unsloth.txt.
UNSLOTH_DOES_WITHOUT = {"certifi", "diffusers", "torchvision", "triton", "wheel", "xformers"}
UNSLOTH_LINE = (
    "pip install --no-deps -r requirements.txt -r requirements-unsloth.txt (in Temper's folder)"
)


@dataclass(frozen=True)
class Diagnosis:
    """One finding. `remedy` is a command that solves the problem, or "" without such a command."""

    level: Level
    subject: str
    text: str
    remedy: str = ""


def examine() -> list[Diagnosis]:
    """Run `diagnose` for this machine, this interpreter's packages and the current disk."""
    return diagnose(detect(Path.cwd()), Installation())


def diagnose(hardware: Hardware, installation: Installation) -> list[Diagnosis]:
    """Return all findings about a machine and its packages, in a natural reading order."""
    return [
        *check_python(hardware),
        *check_machine(hardware),
        *check_needed_packages(installation),
        *check_tested_versions(installation, hardware.nvidia_driver),
        *check_torch_build(hardware, installation),
        *check_traps(hardware, installation),
        *check_unsloth(installation),
    ]


def render(findings: list[Diagnosis]) -> str:
    """Return the findings as text, one per line with the remedy below, and a verdict at the end."""
    lines = []
    for finding in findings:
        lines.append(f"{MARKS[finding.level]}  {finding.subject}: {finding.text}")
        if finding.remedy:
            lines.append(f"      → {finding.remedy}")
    return "\n".join([*lines, verdict(findings)])


def verdict(findings: list[Diagnosis]) -> str:
    """Return a summary in one sentence."""
    num_failed = sum(finding.level == "fail" for finding in findings)
    num_warned = sum(finding.level == "warn" for finding in findings)
    if num_failed:
        return phrase("testing.not_ready_to_train", num_problems=num_failed)
    if num_warned:
        return phrase("testing.ready_with_warnings", num_warnings=num_warned)
    return phrase("testing.ready_to_train")


def exit_code(findings: list[Diagnosis]) -> ExitCode:
    """Return DONE if training can start, else FAILED."""
    fails = any(finding.level == "fail" for finding in findings)
    return ExitCode.FAILED if fails else ExitCode.DONE


def check_python(hardware: Hardware) -> Iterator[Diagnosis]:
    """Check the interpreter's version against the tested ones."""
    version = tuple(map(int, hardware.python.split(".")[:2]))
    tested = {"oldest": _dotted(OLDEST_PYTHON), "newest": _dotted(NEWEST_TESTED_PYTHON)}
    if version < OLDEST_PYTHON:
        text = phrase("testing.python_too_old", python=hardware.python, **tested)
        yield Diagnosis("fail", "Python", text)
    elif version > NEWEST_TESTED_PYTHON:
        text = phrase("testing.python_too_new", python=hardware.python, **tested)
        yield Diagnosis("warn", "Python", text)
    else:
        yield Diagnosis("ok", "Python", f"{hardware.python}, {hardware.platform}")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def check_machine(hardware: Hardware) -> Iterator[Diagnosis]:
    """Check processor, memory, disk and GPUs, and warn if one of them is too small."""
    levels: dict[str, Level] = {
        "memory": "warn" if hardware.memory.available_bytes < LOW_MEMORY_BYTES else "ok",
        "disk": _disk_level(hardware.disk_free_bytes),
        "GPU": "warn" if hardware.nvidia_driver and not hardware.gpus else "ok",
    }
    remedies = {
        "memory": phrase("testing.low_memory"),
        "disk": phrase(
            "testing.free_disk_space",
            reason=_disk_wanted(hardware.disk_free_bytes),
        ),
        "GPU": phrase("testing.check_nvidia_smi"),
    }
    for subject, text in machine_facts(hardware):
        level = levels.get(subject, "ok")
        if subject == "disk" and hardware.disk_free_bytes is not None:
            text = phrase("testing.disk_free", size=format_bytes(hardware.disk_free_bytes))
        yield Diagnosis(level, subject, text, "" if level == "ok" else remedies[subject])


def _disk_wanted(free_bytes: int | None) -> str:
    """Return a sentence on the disk space that checkpoints of a typical run need."""
    if _disk_level(free_bytes) == "fail":
        return phrase(
            "testing.disk_below_minimum",
            minimum=format_bytes(MINIMUM_DISK_BYTES),
        )
    return phrase("testing.disk_low_for_checkpoints", size=format_bytes(LOW_DISK_BYTES))


def _disk_level(free_bytes: int | None) -> Level:
    if free_bytes is None or free_bytes >= LOW_DISK_BYTES:
        return "ok"
    return "fail" if free_bytes < MINIMUM_DISK_BYTES else "warn"


def check_needed_packages(installation: Installation) -> Iterator[Diagnosis]:
    """Check that all required packages are installed, in versions within the declared bounds."""
    needed = installation.requirements(DISTRIBUTION)
    if not needed:
        text = phrase("testing.temper_not_a_package")
        yield Diagnosis("warn", "temper", text, "pip install --no-deps -e . (in Temper's folder)")
    tested = {r.name: r for r in installation.requirements(DISTRIBUTION, extra="tested")}
    for requirement in needed:
        version = installation.version(requirement.name)
        remedy = _pip_line(tested.get(requirement.name, requirement))
        if version is None and requirement.name in READERS:
            purpose = phrase(READERS[requirement.name])
            text = phrase("testing.optional_package_unusable", purpose=purpose)
            yield Diagnosis("warn", requirement.name, text, remedy)
        elif version is None:
            yield Diagnosis("fail", requirement.name, phrase("testing.package_unusable"), remedy)
        elif not accepts(requirement, version):
            text = phrase(
                "testing.package_version_unsupported",
                version=version,
                specifier=requirement.specifier,
            )
            yield Diagnosis("fail", requirement.name, text, remedy)


def check_tested_versions(installation: Installation, has_gpu: bool) -> Iterator[Diagnosis]:
    """Check the installed versions against the tested ones.

    There are two sets of tested versions, `tested` and `colab`; the closer one is used.

    A missing package that only some features need is not a warning.
    """
    columns = {c: installation.requirements(DISTRIBUTION, extra=c) for c in ("tested", "colab")}
    same = {c: [r for r in rs if _as_tested(r, installation)] for c, rs in columns.items()}
    column = max(columns, key=lambda c: len(same[c]))
    if not columns[column]:
        return
    wanted = [
        r
        for r in columns[column]
        if has_gpu or r.name not in FOR_GPUS or installation.version(r.name) is not None
    ]
    others = [r for r in wanted if r not in same[column]]
    text = phrase(
        "testing.num_tested_versions",
        num_matching=len(wanted) - len(others),
        num_packages=len(wanted),
        on=TESTED_ON[column],
    )
    yield Diagnosis("note" if others else "ok", "versions", text)
    needed = {r.name for r in installation.requirements(DISTRIBUTION)}
    for requirement in others:
        version = installation.version(requirement.name)
        if version is None and requirement.name not in needed:
            purpose = NEEDED_FOR.get(requirement.name)
            text = (
                phrase("testing.optional_package_missing", purpose=phrase(purpose))
                if purpose
                else phrase("testing.package_missing")
            )
            yield Diagnosis("note", requirement.name, text, _pip_line(requirement))
        elif version is not None:
            text = phrase(
                "testing.package_version_untested",
                version=version,
                specifier=str(requirement.specifier).removeprefix("=="),
            )
            yield Diagnosis("warn", requirement.name, text, _pip_line(requirement))


def _as_tested(requirement: Requirement, installation: Installation) -> bool:
    version = installation.version(requirement.name)
    return version is not None and accepts(requirement, version)


def _pip_line(requirement: Requirement) -> str:
    return f"pip install '{requirement.name}{requirement.specifier}'"


def check_torch_build(hardware: Hardware, installation: Installation) -> Iterator[Diagnosis]:
    """Check whether PyTorch was built for the machine's hardware."""
    version, cuda = installation.version("torch"), installation.torch_cuda()
    if version is None:
        return
    build = phrase("testing.cuda_build", cuda=cuda) if cuda else phrase("testing.cpu_build")
    if hardware.nvidia_driver and cuda is None:
        text = phrase("testing.pytorch_without_cuda", version=version, build=build)
        remedy = f"pip install 'torch==={version.public}'"
        yield Diagnosis("warn", "PyTorch", text, remedy)
    else:
        yield Diagnosis("ok", "PyTorch", f"{version}, {build}")
    vision = installation.version("torchvision")
    if vision is not None and version.local == "cpu" and vision.local != "cpu":
        text = phrase("testing.torchvision_mismatch", version=vision)
        yield Diagnosis("warn", "torchvision", text, "pip uninstall torchvision")


def check_traps(hardware: Hardware, installation: Installation) -> Iterator[Diagnosis]:
    """Check for combinations of packages that are known to fail."""
    torchao, peft = installation.version("torchao"), installation.version("peft")
    if torchao and peft and torchao < Version(OLDEST_TORCHAO_FOR_PEFT) and peft >= Version("0.19"):
        text = phrase("testing.torchao_too_old", peft=peft, torchao=torchao)
        remedy = f"pip install 'torchao>={OLDEST_TORCHAO_FOR_PEFT}'"
        yield Diagnosis("fail", "torchao", text, remedy)
    if installation.version("triton") and not hardware.nvidia_driver:
        text = phrase("testing.triton_without_gpu")
        yield Diagnosis("warn", "triton", text, "pip uninstall triton")
    newer_python = tuple(map(int, hardware.python.split(".")[:2])) >= (3, 12)
    if newer_python and installation.version("gputil") and not installation.version("setuptools"):
        text = phrase("testing.distutils_missing")
        yield Diagnosis("warn", "gputil", text, "pip install setuptools")


def check_unsloth(installation: Installation) -> Iterator[Diagnosis]:
    """Check that packages are within unsloth's version bounds; no finding without unsloth."""
    for package in ("unsloth", "unsloth_zoo"):
        version = installation.version(package)
        if version is None:
            continue
        unmet = unmet_requirements(package, installation)
        if unmet:
            requirements = [_unmet(needed, installed) for needed, installed in unmet]
            text = phrase("testing.requirements_unmet", version=version, requirements=requirements)
            yield Diagnosis("warn", package, text, UNSLOTH_LINE)
        else:
            yield Diagnosis("ok", package, phrase("testing.unsloth_compatible", version=version))


def _unmet(requirement: Requirement, version: Version | None) -> str:
    needed = f"{requirement.name}{requirement.specifier}"
    if version is None:
        return phrase("testing.requirement_missing", requirement=needed)
    return phrase("testing.requirement_unmet", requirement=needed, version=version)


def unmet_requirements(
    package: str, installation: Installation
) -> list[tuple[Requirement, Version | None]]:
    """Return the unmet requirements of `package`, except those that unsloth can do without."""
    requirements = installation.requirements(package)
    installed = [(r, installation.version(r.name)) for r in requirements]
    return [
        (r, version)
        for r, version in installed
        if r.name not in UNSLOTH_DOES_WITHOUT and (version is None or not accepts(r, version))
    ]


def main() -> int:
    """Check this machine, print the findings, and return the exit code."""
    findings = examine()
    print(render(findings))
    return exit_code(findings)


if __name__ == "__main__":
    sys.exit(main())
