"""A small copy of the project with stand-ins for its packages: real pip, or uv, installs it
offline."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COPIED = [
    "launch_training.sh",
    "infrastructure/__init__.py",
    "infrastructure/core/__init__.py",
    "infrastructure/core/catalogue/deployment.toml",
    "infrastructure/core/errors.py",
    "infrastructure/core/exit_codes.py",
    "infrastructure/core/files.py",
    "infrastructure/core/json_text.py",
    "infrastructure/core/lock.py",
    "infrastructure/core/messages.py",
    "infrastructure/core/nvidia_driver.py",
    "infrastructure/deployment/__init__.py",
    "infrastructure/deployment/environment.py",
    "infrastructure/deployment/environment.sh",
    "infrastructure/deployment/launch_training.sh",
    "infrastructure/deployment/installers.py",
]
DOCTOR = 'print("the doctor was here")\n'
# The program `temper` of this project: prints what it was given, exits with a code of its own.
TEMPER = """
import json, os, sys
def main():
    print(json.dumps({"arguments": sys.argv[1:], "folder": os.getcwd()}))
    return 7
"""
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
BACKEND = '''
"""Builds this project's editable wheel with nothing but the standard library."""
import zipfile, pathlib
def build_editable(folder, config_settings=None, metadata_directory=None):
    name, info = "temper_train-0.2.0-py3-none-any.whl", "temper_train-0.2.0.dist-info"
    files = {
        "temper.pth": str(pathlib.Path.cwd()),
        f"{info}/METADATA": "Metadata-Version: 2.1\\nName: temper-train\\nVersion: 0.2.0\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        f"{info}/entry_points.txt": "[console_scripts]\\ntemper = small_temper:main\\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)
    return name
'''


UV = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
NO_UV = "there is no uv here; requirements-dev.txt brings one"
# What a test with an installer is marked with.
NEEDS = {"pip": [], "uv": [pytest.mark.skipif(UV is None, reason=NO_UV)]}


@dataclass(frozen=True)
class Outcome:
    """What a command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class SmallProject:
    """The project in `root`, whose installer sees the wheels in `wheels` and nothing else."""

    root: Path
    wheels: Path
    installer: str = "pip"

    def run(
        self, script: str, *arguments: str, cwd: Path | None = None, **variables: str
    ) -> Outcome:
        """Run one of the project's scripts to its end."""
        done = subprocess.run(
            [str(self.root / script), *arguments],
            cwd=cwd or self.root.parent,
            env=self.variables(variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def variables(self, more: Mapping[str, str]) -> dict[str, str]:
        """The environment variables of a command: the installer is kept off any index."""
        return {**os.environ, **offline(self.wheels, self.installer), **more}

    @property
    def packages(self) -> Path:
        """Where the environment keeps its packages."""
        (found,) = (self.root / ".venv").glob("lib/python*/site-packages")
        return found


def offline(wheels: Path, installer: str) -> dict[str, str]:
    """Variables under which this installer finds these wheels and nothing else."""
    path = os.environ.get("PATH", os.defpath)
    if installer == "uv":
        assert UV is not None
        path = f"{Path(UV).parent}{os.pathsep}{path}"
    return {
        "PATH": path,
        "TEMPER_INSTALLER": installer,
        "UV_CACHE_DIR": str(wheels.with_name("uv cache")),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": wheels.as_uri(),
        "PIP_CONFIG_FILE": os.devnull,
    }


def make_wheel(folder: Path, name: str, version: str) -> None:
    """Write an installable package that has nothing in it but a module."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"version = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{file},,{len(text)}" for file, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)


def make_small_project(folder: Path, installer: str = "pip") -> SmallProject:
    """A project in a folder with a space in its name, not installed yet."""
    project = SmallProject(folder / "small project", folder / "wheels", installer)
    for name in COPIED:
        target = project.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    texts = {
        "requirements.txt": "# the tested matrix\ntorch==2.13.0\nleaf==1.0\n",
        "requirements-unsloth.txt": "unsloth==1.0\n",
        "requirements-dev.txt": "checker==1.0\n",
        "requirements-quantum.txt": "annealer==1.0\n",
        "requirements-export.txt": "# nothing\n",
        "requirements-sweep.txt": "# nothing\n",
        "pyproject.toml": PYPROJECT,
        "backend.py": BACKEND,
        "small_temper.py": TEMPER,
        "infrastructure/testing/doctor.py": DOCTOR,
    }
    (project.root / "infrastructure/testing").mkdir()
    for name, text in texts.items():
        (project.root / name).write_text(text)
    project.wheels.mkdir()
    for wheel in (
        "torch 2.13.0+cpu",
        "torch 2.13.0",
        "leaf 1.0",
        "unsloth 1.0",
        "checker 1.0",
        "annealer 1.0",
    ):
        make_wheel(project.wheels, *wheel.split())
    return project
