"""The packages that Temper needs in addition to those of a notebook's environment.

Existing packages that work are kept, whatever their version, because a kernel has loaded some of
them, and Colab's own packages fit each other. Missing packages are installed in the versions with
which Temper was tested. This module uses the standard library, and `packaging` inside the
functions.
"""

import importlib.metadata
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from infrastructure.core.messages import phrase
from infrastructure.core.optional import DISTRIBUTION, OLDEST_TORCHAO_FOR_PEFT
from infrastructure.deployment.environment import ROOT
from infrastructure.deployment.installers import InstallError

Column = Literal["colab", "tested"]
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")
# Loaded before a notebook's first cell, or not available in another build: never replaced.
HELD = ("torch", "numpy", "ipywidgets")
# Must be newer than Colab's own, although no dependency of Temper requires it.
BOUNDS = {"torchao": f"torchao>={OLDEST_TORCHAO_FOR_PEFT}"}
# A new torch may need these newer than in a bare environment: Python 3.11 has them from 2022.
NEEDED_BY_TORCH = ("setuptools",)
UNSLOTH_OWN = ("unsloth", "unsloth_zoo")
# Closest to Colab's 4.0.0, which unsloth excludes; newer ones need a newer pyarrow than Colab's.
DATASETS_FOR_UNSLOTH = "datasets==3.6.0"


@dataclass(frozen=True)
class Needed:
    """The packages to install, and those that must stay unchanged.

    Attributes:
        lines: the requirements for pip.
        held: the constraints for pip, which keep installed packages at their versions.
        alone: the requirements that are installed without their dependencies, after the others.
    """

    lines: tuple[str, ...]
    held: tuple[str, ...]
    alone: tuple[str, ...] = ()


def needed(column: Column, with_unsloth: bool) -> Needed:
    """Return the packages that this environment lacks, and those to keep unchanged.

    Raises:
        InstallError: if torch, numpy or ipywidgets is installed in a version that is too old.
    """
    requirements = requirement_lines()
    base = {name_of(line): line for line in requirements[""]}
    pins = {name_of(line): line for line in requirements[column]}
    lines = {name: pins.get(name, line) for name, line in base.items() if is_unmet(line)}
    others = {name: pin for name, pin in pins.items() if name not in base}
    lines |= {name: pin for name, pin in others.items() if is_unmet(BOUNDS.get(name, name))}
    for name in HELD:
        if name in lines and (version := installed_version(name)) is not None:
            about = {"name": name, "version": version, "needed": base[name]}
            raise InstallError(phrase("notebook.package_too_old", **about))
    replaced = {*lines, *(NEEDED_BY_TORCH if "torch" in lines else ())}
    stay = [name for name in dict.fromkeys([*base, *pins, *HELD]) if name not in replaced]
    held = [
        f"{name}=={version}" for name in stay if (version := installed_version(name)) is not None
    ]
    return Needed(
        tuple(lines.values()), tuple(held), _of_unsloth(requirements) if with_unsloth else ()
    )


def _of_unsloth(requirements: dict[str, list[str]]) -> tuple[str, ...]:
    lines = requirements["unsloth"]
    return tuple(
        line for line in lines if is_unmet(line if name_of(line) in UNSLOTH_OWN else name_of(line))
    )


def needed_by_unsloth() -> tuple[str, ...]:
    """Return the package versions that an installed unsloth needs and this environment lacks."""
    lines = importlib.metadata.requires("unsloth") or []
    theirs = [line for line in lines if ";" not in line and name_of(line) == "datasets"]
    return (DATASETS_FOR_UNSLOTH,) if any(map(is_unmet, theirs)) else ()


def requirement_lines(root: Path = ROOT) -> dict[str, list[str]]:
    """Return Temper's requirements by the name of the extra, or "" for those always needed.

    They are read from the files of this checkout if there is one, or else from the installed
    metadata.

    Raises:
        InstallError: if neither exists.
    """
    if (root / "pyproject.toml").is_file():
        return _of_checkout(root)
    try:
        declared = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        raise InstallError("notebook.temper_not_installed") from None
    by_extra: dict[str, list[str]] = {"": []}
    for line in declared:
        requirement, _, marker = line.partition(";")
        extra = _EXTRA.search(marker)
        by_extra.setdefault(extra[1] if extra else "", []).append(requirement.strip())
    return by_extra


def _of_checkout(root: Path) -> dict[str, list[str]]:
    declared = tomllib.loads((root / "pyproject.toml").read_text())
    extras = declared["tool"]["setuptools"]["dynamic"]["optional-dependencies"]
    texts = {
        extra: "\n".join((root / file).read_text() for file in source["file"])
        for extra, source in extras.items()
    }
    by_extra = {
        extra: [line for line in text.splitlines() if line and not line.startswith("#")]
        for extra, text in texts.items()
    }
    return {"": declared["project"]["dependencies"], **by_extra}


def name_of(line: str) -> str:
    """Return the name of the package in a requirement."""
    from packaging.requirements import Requirement

    return Requirement(line).name


def is_unmet(line: str) -> bool:
    """Return whether this environment lacks the package or version of the requirement `line`."""
    from packaging.requirements import Requirement

    requirement = Requirement(line)
    version = installed_version(requirement.name)
    return version is None or not requirement.specifier.contains(version, prereleases=True)


def installed_version(name: str) -> str | None:
    """Return the installed version of a package; None if the package is missing or broken."""
    try:
        return importlib.metadata.version(name)
    except (importlib.metadata.PackageNotFoundError, KeyError):
        return None
