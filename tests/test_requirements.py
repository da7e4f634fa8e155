"""The requirement files agree with each other, with pyproject.toml and with unsloth's bounds."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from infrastructure.core.optional import PIP_LINES, TESTED_TRL
from infrastructure.testing.doctor import UNSLOTH_DOES_WITHOUT, Installation, accepts

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COLUMNS = {
    "tested": ["requirements.txt"],
    "colab": ["requirements-colab.txt", "constraints-colab.txt"],
}
OPTIONAL = [
    f"requirements-{extra}.txt"
    for extra in ("unsloth", "quantum", "eval", "export", "sweep", "dev")
]
FILES = [*COLUMNS["tested"], *COLUMNS["colab"], *OPTIONAL]
KERNEL_FILE = "requirements-colab-kernel.txt"  # of tests alone, so no extra
A_RANGE_IS_MEANT = {("constraints-colab.txt", "torch")}


def requirements(file: str) -> list[Requirement]:
    """What `file` lists; every line that is no comment must be a plain requirement."""
    lines = (ROOT / file).read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def pins(*files: str) -> dict[str, Version]:
    """The exact version of each package in `files`, by canonical name."""
    found = {}
    for requirement in (r for file in files for r in requirements(file)):
        (bound,) = [s for s in requirement.specifier if s.operator in ("==", ">=")]
        found[canonicalize_name(requirement.name)] = Version(bound.version)
    return found


@pytest.mark.parametrize("file", [*FILES, KERNEL_FILE])
def test_every_version_is_exact_and_written_once(file: str) -> None:
    listed = requirements(file)
    loose = [r.name for r in listed if [s.operator for s in r.specifier] != ["=="]]
    assert [name for name in loose if (file, name) not in A_RANGE_IS_MEANT] == []
    assert len({canonicalize_name(r.name) for r in listed}) == len(listed)


@pytest.mark.parametrize("column", COLUMNS)
def test_pins_lie_in_the_ranges_that_an_installation_accepts(column: str) -> None:
    pinned = pins(*COLUMNS[column])
    dependencies = [Requirement(line) for line in PYPROJECT["project"]["dependencies"]]
    outside = [
        str(requirement)
        for requirement in dependencies
        if (version := pinned.get(canonicalize_name(requirement.name)))
        and not accepts(requirement, version)
    ]
    assert outside == []


def test_every_dependency_has_a_tested_version() -> None:
    """Under the same spelling: the doctor looks the one up by the other's name."""
    tested = {requirement.name for requirement in requirements("requirements.txt")}
    needed = {Requirement(line).name for line in PYPROJECT["project"]["dependencies"]}
    assert needed <= tested


def test_the_extras_are_the_files() -> None:
    extras = PYPROJECT["tool"]["setuptools"]["dynamic"]["optional-dependencies"]
    assert {name: extras[name]["file"] for name in COLUMNS} == COLUMNS
    assert sorted(file for extra in extras.values() for file in extra["file"]) == sorted(FILES)


@pytest.mark.parametrize("package", ["unsloth", "unsloth_zoo"])
def test_unsloth_gets_what_it_requires(package: str) -> None:
    """From a file of ours inside its bounds, or as a dependency of something that is."""
    here = Installation()
    pinned = pins("requirements.txt", "requirements-unsloth.txt")
    if here.version(package) != pinned[canonicalize_name(package)]:
        pytest.skip(f"{package} is not installed in the tested version")
    for requirement in here.requirements(package):
        if requirement.name not in UNSLOTH_DOES_WITHOUT:
            version = pinned.get(canonicalize_name(requirement.name)) or here.version(
                requirement.name
            )
            assert version is not None, f"{requirement} is in no file and not installed"
            assert accepts(requirement, version), f"{requirement} does not accept {version}"


def test_trl_is_named_with_the_versions_that_are_tested() -> None:
    """Wherever something says how to install it."""
    tested = sorted(pins(name)["trl"] for name in ("requirements.txt", "requirements-colab.txt"))
    assert f">={tested[0]},<={tested[1]}" == TESTED_TRL
    page = (ROOT / "docs/methods.md").read_text()
    assert f"`{PIP_LINES['trl']}`" in page


def test_the_readme_of_a_package_leads_to_the_repository(tmp_path: Path) -> None:
    """An index shows it away from its folder; what is built has no other description."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", *FILES):
        shutil.copy(ROOT / name, tmp_path)
    for package in ("infrastructure", "colab", "temper"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    line = "import setuptools.build_meta as b; print(b.prepare_metadata_for_build_wheel('.'))"
    subprocess.run([sys.executable, "-c", line], cwd=tmp_path, check=True, capture_output=True)
    (metadata,) = tmp_path.glob("*.dist-info/METADATA")
    text = metadata.read_text()
    assert "Description-Content-Type: text/markdown" in text
    links = re.findall(r"\]\(([^)]+)\)", text)
    address = PYPROJECT["project"]["urls"]["Repository"]
    assert f"{address}/blob/main/docs/first-run.md" in links
    assert f"{address}/raw/main/docs/images/killed-run.svg" in links
    assert not [link for link in links if not link.startswith(("https://", "#"))]
