"""What Temper needs on top of the packages that a notebook's environment has.

What is there and works stays, whatever its version: a kernel has loaded some of it, and Colab's own
packages fit each other. Missing packages come in the versions of the tested column. Standard
library, and `packaging` inside the functions.
"""

import importlib.metadata
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from infrastructure.core.optional import DISTRIBUTION, OLDEST_TORCHAO_FOR_PEFT
from infrastructure.deployment.environment import ROOT
from infrastructure.deployment.installers import InstallError

Column = Literal["colab", "tested"]
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")
# Loaded before a notebook's first cell, or not to be had in another build: never replaced.
HELD = ("torch", "numpy", "ipywidgets")
# What has to be newer than Colab's own, though no dependency of Temper's asks for it.
BOUNDS = {"torchao": f"torchao>={OLDEST_TORCHAO_FOR_PEFT}"}
# What a new torch may want newer than a bare environment has it: that of Python 3.11 is of 2022.
NEEDED_BY_TORCH = ("setuptools",)
UNSLOTH_OWN = ("unsloth", "unsloth_zoo")
# Nearest to Colab's 4.0.0, which unsloth excludes; newer ones need a newer pyarrow than Colab has.
DATASETS_FOR_UNSLOTH = "datasets==3.6.0"


@dataclass(frozen=True)
class Needed:
    """What is to be installed, and what must stay as it is meanwhile.

    Attributes:
        lines: requirements for pip.
        held: constraints for pip: packages of the column that are there.
        alone: requirements that are installed without their dependencies, after the others.
    """

    lines: tuple[str, ...]
    held: tuple[str, ...]
    alone: tuple[str, ...] = ()


def needed(column: Column, with_unsloth: bool) -> Needed:
    """What this environment lacks.

    Raises:
        InstallError: one of `HELD` is here in a version that Temper does not work with.
    """
    requirements = requirement_lines()
    base = {name_of(line): line for line in requirements[""]}
    pins = {name_of(line): line for line in requirements[column]}
    lines = {name: pins.get(name, line) for name, line in base.items() if is_unmet(line)}
    others = {name: pin for name, pin in pins.items() if name not in base}
    lines |= {name: pin for name, pin in others.items() if is_unmet(BOUNDS.get(name, name))}
    for name in HELD:
        if name in lines and (version := installed_version(name)) is not None:
            raise InstallError(
                f"{name} {version} is here and Temper needs {base[name]}: install that yourself,"
                " and restart the kernel"
            )
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
    """What an installed unsloth does not accept of this environment, in a version that it does."""
    lines = importlib.metadata.requires("unsloth") or []
    theirs = [line for line in lines if ";" not in line and name_of(line) == "datasets"]
    return (DATASETS_FOR_UNSLOTH,) if any(map(is_unmet, theirs)) else ()


def requirement_lines(root: Path = ROOT) -> dict[str, list[str]]:
    """Temper's requirements by extra ("": those that nothing works without).

    From the files of the checkout that this is, else from the installed metadata.

    Raises:
        InstallError: there are neither.
    """
    if (root / "pyproject.toml").is_file():
        return _of_checkout(root)
    try:
        declared = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        raise InstallError("temper is not installed as a package: pip install it first") from None
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
    """The package of a requirement."""
    from packaging.requirements import Requirement

    return Requirement(line).name


def is_unmet(line: str) -> bool:
    """Whether a requirement is not fulfilled here; a bare name asks for any version."""
    from packaging.requirements import Requirement

    requirement = Requirement(line)
    version = installed_version(requirement.name)
    return version is None or not requirement.specifier.contains(version, prereleases=True)


def installed_version(name: str) -> str | None:
    """The installed version of a package; None: it is not there, or its metadata is broken."""
    try:
        return importlib.metadata.version(name)
    except (importlib.metadata.PackageNotFoundError, KeyError):
        return None
