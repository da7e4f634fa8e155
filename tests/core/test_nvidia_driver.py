"""A driver is found by its traces or by an answering `nvidia-smi`, and not by the program alone."""

from pathlib import Path

import pytest

from infrastructure.core import nvidia_driver
from infrastructure.core.nvidia_driver import nvidia_driver_present


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where to put a program `nvidia-smi` that is the only one on the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin" / "nvidia-smi"


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_none_on_a_bare_machine(tmp_path: Path, smi: Path) -> None:
    assert not nvidia_driver_present(tmp_path)


def test_the_loaded_module_is_enough(tmp_path: Path, smi: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: …")
    assert nvidia_driver_present(tmp_path)


def test_windows_subsystem(tmp_path: Path, smi: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    assert not nvidia_driver_present(tmp_path)  # any Windows machine has that
    (tmp_path / "usr/lib/wsl/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/wsl/lib/libcuda.so.1").touch()
    assert nvidia_driver_present(tmp_path)


@pytest.mark.parametrize(
    ("script", "present"),
    [
        ('[ "$*" = -L ] && echo "GPU 0: NVIDIA H100 (UUID: …)"', True),
        ("echo 'GPU 0: NVIDIA H100 (UUID: …)'; exit 15", False),
        ("echo 'No devices found.'", False),
        ("echo 'NVIDIA-SMI has failed because it could not talk to the driver'; exit 9", False),
        ("exit 0", False),
        ("exec ./no-such-program", False),
    ],
)
def test_nvidia_smi_has_to_list_a_gpu(
    tmp_path: Path, smi: Path, script: str, present: bool
) -> None:
    program(smi, script)
    assert nvidia_driver_present(tmp_path) == present


def test_a_hanging_nvidia_smi_is_given_up(
    tmp_path: Path, smi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia_driver, "NVIDIA_SMI_TIMEOUT_SECONDS", 0.1)
    program(smi, "while :; do :; done")
    assert not nvidia_driver_present(tmp_path)
