"""Metadata is read without importing, and broken metadata is told apart from none."""

from pathlib import Path

import pytest
from packaging.version import Version

from infrastructure.testing.installation import Installation
from tests.testing.fake_packages import install, install_torch


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
