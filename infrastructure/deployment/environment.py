"""Create the environment that `launch_training.sh` and `make` use, and check if it is ready.

This module uses only the standard library, because it runs before anything is installed, with any
Python from 3.11 on. Each part is recorded in a file in the environment once it is completely
installed, so a killed installation is detected and continues with the missing parts. Nothing
outside the environment's folder is changed except `temper_train.egg-info`, which setuptools writes
for an editable install.
"""

import argparse
import csv
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NoReturn

from infrastructure.core.files import write_json
from infrastructure.core.json_text import json_of
from infrastructure.core.messages import phrase
from infrastructure.core.nvidia_driver import nvidia_driver_present
from infrastructure.deployment.installers import (
    Installer,
    InstallError,
    installer_for,
    report,
    step,
)

ROOT = Path(__file__).resolve().parents[2]
RECORD_NAME = "temper-environment.json"
PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # the index of pytorch.org
TorchBuild = Literal["cpu", "cuda"]
OPTIONAL_FILES = tuple(f"requirements-{extra}.txt" for extra in ("quantum", "export", "sweep"))
COLAB_FILES = ("requirements-colab.txt", "constraints-colab.txt", "requirements-colab-kernel.txt")
NEED_TORCH = ("torch", "accelerate", "bitsandbytes", "peft", "torchao", "trl")
DISK_NEEDED_BYTES = {"cpu": 4_000_000_000, "cuda": 12_000_000_000}


@dataclass(frozen=True)
class InstallationStep:
    """A step of the installation. It is complete if the environment's record maps `name` to
    `fingerprint`.

    Attributes:
        left_out: packages that the requirement files list but this step does not install.
    """

    name: str
    fingerprint: str
    files: tuple[Path, ...] = ()
    with_dependencies: bool = True
    left_out: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        names = " + ".join(file.name for file in self.files)
        if self.left_out:
            return phrase("deployment.part_without_torch", files=names)
        if self.with_dependencies:
            return names
        return phrase("deployment.part_without_dependencies", files=names)


@dataclass(frozen=True)
class Plan:
    """The parts that an environment should contain, and the environment's location."""

    root: Path
    folder: Path
    parts: tuple[InstallationStep, ...]
    torch_build: TorchBuild


def main(arguments: Sequence[str] | None = None) -> int:
    """Create the environment. Return 0 if it is ready, 1 if it cannot be created."""
    options = parse(arguments)
    try:
        plan = make_plan(ROOT, options)
        ready = is_ready(plan)
        if ready or options.check:
            return int(not ready)
        signal.signal(signal.SIGTERM, _stop)
        with only_one_installer():
            if not is_ready(plan):  # the process that held the lock may have finished it
                install(plan)
                if not options.without_torch:  # it is not for training
                    show_machine(plan)
    except InstallError as error:
        report(f"temper: {error}")
        return 1
    except KeyboardInterrupt:
        report(phrase("deployment.installation_interrupted"))
        return 130
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line of this module."""
    parser = argparse.ArgumentParser(prog="environment.sh", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="only tell (0: ready), install nothing"
    )
    parser.add_argument("--with-unsloth", action="store_true", help="unsloth without a GPU too")
    parser.add_argument("--with-dev", action="store_true", help="the tools that `make test` needs")
    parser.add_argument("--colab", action="store_true", help="Colab's versions, in .venv-colab")
    parser.add_argument(
        "--without-torch",
        action="store_true",
        help="with --colab: what a notebook's side needs, in .venv-colab-light",
    )
    options = parser.parse_args(arguments)
    if options.without_torch and not options.colab:
        parser.error("--without-torch is for --colab")
    return options


def _stop(*_: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


# What there should be


def make_plan(root: Path, options: argparse.Namespace) -> Plan:
    """Return the parts for these options on this machine, in the order of installation."""
    folder = root / _folder_name(options)
    driver = nvidia_driver_present()
    build = _torch_build(driver, read_record(folder))
    base = _files_part(root, "base", *(COLAB_FILES if options.colab else ("requirements.txt",)))
    parts = [InstallationStep("torch", f"{build} {torch_version(root)}"), base]
    if options.without_torch:
        parts = [replace(base, left_out=NEED_TORCH)]
    if options.with_unsloth or (driver and not options.colab):
        parts.append(_files_part(root, "unsloth", "requirements-unsloth.txt", alone=True))
    if options.with_dev:
        optional = () if options.colab else OPTIONAL_FILES  # Colab may not have these packages
        parts.append(_files_part(root, "dev", "requirements-dev.txt", *optional))
    metadata = [root / "pyproject.toml", *sorted(root.glob("*requirements*.txt"))]
    parts.append(InstallationStep("temper", _hash(metadata)))
    return Plan(root, folder, tuple(parts), build)


def _folder_name(options: argparse.Namespace) -> str:
    if options.without_torch:
        return ".venv-colab-light"
    return ".venv-colab" if options.colab else ".venv"


def _torch_build(driver: bool, record: dict[str, str]) -> TorchBuild:
    """Return the build of PyTorch to install: "cuda" or "cpu".

    An installed CUDA build is kept, because several machines may share the folder.
    """
    return "cuda" if driver or record.get("torch", "").startswith("cuda") else "cpu"


def _files_part(root: Path, name: str, *files: str, alone: bool = False) -> InstallationStep:
    paths = tuple(root / file for file in files)
    return InstallationStep(name, _hash(paths), paths, with_dependencies=not alone)


def _hash(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def torch_version(root: Path) -> str:
    """Return the version of torch that requirements.txt pins, such as `2.13.0`."""
    for line in (root / "requirements.txt").read_text().splitlines():
        if line.startswith("torch=="):
            return line.removeprefix("torch==").strip()
    raise InstallError("deployment.torch_version_not_pinned")


# What there is


def read_record(folder: Path) -> dict[str, str]:
    """Return the environment's record; empty if it is missing or damaged."""
    record = json_of(folder / RECORD_NAME)
    return {name: value for name, value in record.items() if isinstance(value, str)}


def is_ready(plan: Plan) -> bool:
    """Return whether all parts are installed, by reading a few small files."""
    record = read_record(plan.folder)
    in_place = record.get("location") == str(plan.folder) and python_of(plan.folder).exists()
    return in_place and not pending(plan, record)


def pending(plan: Plan, record: dict[str, str]) -> list[InstallationStep]:
    """Return the parts that are missing or outdated."""
    return [part for part in plan.parts if record.get(part.name) != part.fingerprint]


def python_of(folder: Path) -> Path:
    """Return the path of the environment's own Python."""
    return folder / "bin" / "python"


# How to get from one to the other


def install(plan: Plan) -> None:
    """Install the missing parts, with a line for each step.

    Raises:
        InstallError: if a step failed; the message names it and contains the last lines of output.
    """
    started = time.monotonic()
    record = read_record(plan.folder)
    fresh = not is_usable(plan.folder, record)
    todo = list(plan.parts) if fresh else pending(plan, record)
    _check_disk(plan, todo)
    report(phrase("deployment.installation_starts", folder=plan.folder, log="install.log"))
    if fresh:
        with step(phrase("deployment.virtual_environment", python=sys.version.split()[0])):
            make_virtual_environment(plan.folder)
        record = {"location": str(plan.folder)}
    for packages in sorted(plan.folder.glob("lib/python*/site-packages")):
        for name in remove_half_installed(packages):
            report(phrase("deployment.half_installed_removed", name=name))
    installer = installer_for(python_of(plan.folder), plan.folder / "install.log")
    for part in todo:
        record.pop(part.name, None)
        write_json(plan.folder / RECORD_NAME, record)
        install_part(plan, part, installer)
        record[part.name] = part.fingerprint
        write_json(plan.folder / RECORD_NAME, record)
    if plan.torch_build == "cpu":
        remove_triton(plan.folder, installer)
    report(phrase("deployment.environment_ready", seconds=time.monotonic() - started))
    command = plan.folder / "bin" / "temper"
    if command.is_file() and shutil.which("temper") is None:
        report(phrase("deployment.command_not_on_path", command=os.path.relpath(command)))


def is_usable(folder: Path, record: dict[str, str]) -> bool:
    """Return whether `folder` is a complete environment. Temper or the user may have created it.

    Raises:
        InstallError: if it is a user's environment with a Python that is too old.
    """
    if record and record.get("location") != str(folder):
        return False  # the folder was moved: its scripts start the Python of the old path
    probe = "import sys, importlib.metadata as m; m.distribution('pip').read_text('RECORD') or 1/0"
    probe += "; print(*sys.version_info[:2], sep='.')"
    if not python_of(folder).exists():
        return False
    answer = subprocess.run(
        [python_of(folder), "-I", "-c", probe], capture_output=True, text=True, check=False
    )
    if answer.returncode != 0:
        return False
    if tuple(map(int, answer.stdout.split("."))) < (3, 11):
        if record:
            return False
        version = answer.stdout.strip()
        raise InstallError("deployment.environment_of_old_python", folder=folder, version=version)
    return True


def make_virtual_environment(folder: Path) -> None:
    """Create a new, empty environment in `folder`, and delete an existing one.

    If `folder` is a link, only the link is deleted: its target may be the environment of another
    clone.

    The base interpreter creates it, even if this runs in another active environment. Python's own
    module is used instead of uv, because it installs pip without a network, and pip can install
    packages that uv cannot.
    """
    if folder.is_symlink():
        folder.unlink()
    base = getattr(sys, "_base_executable", sys.executable)
    command = [base, "-I", "-m", "venv", "--clear", str(folder)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise InstallError(
            "deployment.environment_not_created",
            folder=folder,
            output=(made.stdout + made.stderr).strip(),
        )


def remove_half_installed(packages: Path, since: float = 0.0) -> list[str]:
    """Remove incomplete packages that a killed installer left, so that they are installed again.

    pip writes a package's RECORD last, and first renames the package that it replaces to `~name`.
    uv writes the RECORD among the other files, so the files in each RECORD are checked.

    Args:
        since: Unix time; the files of older packages are not checked.

    Returns:
        The names of the removed packages.
    """
    without_record = [p for p in packages.glob("*.dist-info") if not (p / "RECORD").exists()]
    new = [p for p in packages.glob("*.dist-info") if p.stat().st_mtime >= since]
    cut_off = [p for p in new if p not in without_record and not is_whole(p)]
    removed = []
    for leftover in [*without_record, *cut_off, *packages.glob("~*")]:
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        removed.append(leftover.name)
    return removed


def is_whole(dist_info: Path) -> bool:
    """Return whether an installed package has the files in its RECORD, with the right sizes.

    Scripts are not checked, because they are in another folder and differ between environments.
    """
    try:
        with (dist_info / "RECORD").open(newline="") as record:
            rows = [row for row in csv.reader(record) if len(row) == 3]
        return all(
            (dist_info.parent / path).stat().st_size == int(size)
            for path, _, size in rows
            if size and not path.startswith(("..", "/"))
        )
    except (OSError, ValueError):  # a file is missing, or the record is incomplete
        return False


def install_part(plan: Plan, part: InstallationStep, installer: Installer) -> None:
    """Install one part of the plan."""
    if part.name == "torch":
        install_torch(installer, torch_version(plan.root), plan.torch_build)
    elif part.name == "temper":
        title = phrase("deployment.temper_editable")
        installer.install(title, "--no-deps", "--editable", str(plan.root))
    else:
        files = [word for file in to_install(plan, part) for word in ("-r", str(file))]
        mode = ["-c", str(hold_torch(plan))] if part.with_dependencies else ["--no-deps"]
        installer.install(part.title, *mode, *files)


def remove_triton(folder: Path, installer: Installer) -> None:
    """Remove triton, which the default PyTorch includes.

    Without a GPU, kernels of TRL and unsloth fail if triton is installed.
    """
    if any(folder.glob("lib/python*/site-packages/triton-*.dist-info")):
        installer.uninstall(phrase("deployment.removing_triton"), "triton")


def to_install(plan: Plan, part: InstallationStep) -> Sequence[Path]:
    """Return the requirement files to install for a part of the environment. If some of its
    packages are left out, they are merged into one file without these packages.
    """
    if not part.left_out:
        return part.files
    lines = [line for file in part.files for line in file.read_text().splitlines()]
    name = re.compile(rf"({'|'.join(part.left_out)})\b")
    kept = plan.folder / "without-torch.txt"
    kept.write_text("\n".join(line for line in lines if not name.match(line)) + "\n")
    return [kept]


def hold_torch(plan: Plan) -> Path:
    """Write a constraints file that prevents pip from replacing the chosen PyTorch."""
    file = plan.folder / "held.txt"
    file.write_text(f"torch=={torch_version(plan.root)}\n")
    return file


def install_torch(installer: Installer, version: str, build: TorchBuild) -> None:
    """Install the build of PyTorch that fits the machine, from the first source that has it.

    With an NVIDIA driver, this is the CUDA build, which the default index serves on Linux (`===`
    excludes a CPU build). Without a driver, it is a `+cpu` build from pip's configured indexes or
    from PyTorch's CPU index, or as a last resort the default build.
    """
    if build == "cuda":
        installer.install(
            phrase("deployment.pytorch_cuda_build", version=version), f"torch==={version}"
        )
        return
    cpu, title = f"torch=={version}+cpu", phrase("deployment.pytorch_cpu_build", version=version)
    if installer.offers(cpu):
        installer.install(title, cpu)
    elif sys.platform == "linux" and installer.offers(cpu, "--index-url", PYTORCH_CPU_INDEX):
        source = ("--index-url", PYTORCH_CPU_INDEX)
        title = phrase("deployment.pytorch_from_index", title=title, index=PYTORCH_CPU_INDEX)
        installer.install(title, "--no-deps", *source, cpu)
    else:
        size = phrase("deployment.pytorch_size_with_cuda") if sys.platform == "linux" else ""
        title = phrase("deployment.pytorch_default_build", version=version, size=size)
        installer.install(title, f"torch=={version}")


def show_machine(plan: Plan) -> None:
    """Print the report of `temper doctor`, whatever its exit code is."""
    python = str(python_of(plan.folder))
    command = [python, "-P", "-m", "infrastructure.testing.doctor"]
    subprocess.run(command, stdout=sys.stderr, check=False)


def _check_disk(plan: Plan, todo: list[InstallationStep]) -> None:
    if not any(part.name == "torch" for part in todo):
        return
    free = shutil.disk_usage(plan.root).free
    needed = DISK_NEEDED_BYTES[plan.torch_build]
    if free < needed:
        raise InstallError(
            "deployment.installation_disk_full",
            folder=plan.root,
            free=free / 1000000000.0,
            needed=needed / 1000000000.0,
        )


@contextmanager
def only_one_installer() -> Iterator[None]:
    """Return a context that waits for other installations in this checkout, and locks them out."""
    with Path(__file__).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(phrase("deployment.waiting_for_installation"))
            fcntl.flock(file, fcntl.LOCK_EX)
        os.set_inheritable(file.fileno(), True)
        yield


if __name__ == "__main__":
    sys.exit(main())
