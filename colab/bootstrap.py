"""The installation of everything that Temper needs, in the first line of a notebook.

    import colab
    colab.install()

This module needs only Python. The packages of Colab stay unchanged, above all torch, numpy and
ipywidgets.
"""

import importlib
import importlib.metadata
import importlib.util
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Literal

from colab.needed_packages import (
    Column,
    Needed,
    name_of,
    needed,
    needed_by_unsloth,
    requirement_lines,
)
from colab.runtime import Platform, platform
from infrastructure.core.cache_folder import cache_directory
from infrastructure.core.errors import RestartNeededError
from infrastructure.core.messages import phrase
from infrastructure.core.nvidia_driver import nvidia_driver_present
from infrastructure.deployment.environment import (
    TorchBuild,
    install_torch,
    only_one_installer,
    remove_half_installed,
)
from infrastructure.deployment.installers import Installer, InstallError, installer_for

FOLDER = cache_directory()
UNFINISHED = "installing"  # exists during an installation; a killed one leaves it
PIN = "torch=="
LOADED_BY_EVERY_PYTHON = {"_distutils_hack"}  # by setuptools' .pth file
_stale: set[str] = set()  # packages loaded by this process that have another version on disk


def install(with_unsloth: bool | Literal["on_gpu"] = False) -> None:
    """Install the packages that Temper needs and this environment lacks.

    If all of them are installed, this does nothing.

    Args:
        with_unsloth: whether to install unsloth and its dependencies, too; with "on_gpu", only if
            there is an NVIDIA GPU. If unsloth cannot be installed, only a message is
            printed, because training works without unsloth.

    Raises:
        InstallError: if an installation failed (with its last output), or torch, numpy or
            ipywidgets is too old.
        RestartNeededError: if packages that this kernel has loaded were replaced.
    """
    column: Column = "colab" if platform() is Platform.COLAB else "tested"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with redirect_stderr(sys.stdout), only_one_installer():
        if with_unsloth == "on_gpu":
            replaced = _install(column, False) | _install_for_gpu(column)
        else:
            replaced = _install(column, with_unsloth)
    _stale.update(loaded_of(replaced))
    if _stale:
        raise RestartNeededError(
            "notebook.packages_replaced_after_loading", packages=sorted(_stale)
        )
    print(phrase("notebook.everything_installed"))


def _install_for_gpu(column: Column) -> set[str]:
    """Install with unsloth if there is an NVIDIA GPU. If unsloth cannot be installed, only print a
    message.
    """
    if not nvidia_driver_present():
        return set()
    try:
        return _install(column, True)
    except InstallError as error:
        print(phrase("notebook.unsloth_not_installed", error=error))
        return set()


def _install(column: Column, with_unsloth: bool) -> set[str]:
    """Install the missing packages, and return the names of packages that were replaced."""
    if (FOLDER / UNFINISHED).exists():
        began = (FOLDER / UNFINISHED).stat().st_mtime
        for name in remove_half_installed(Path(sysconfig.get_path("purelib")), since=began):
            print(phrase("deployment.half_installed_removed", name=name))
    if importlib.util.find_spec("packaging") is None:
        (line,) = [one for one in requirement_lines()[""] if one.startswith("packaging")]
        _installer().install("packaging", line)
        importlib.invalidate_caches()
    todo = needed(column, with_unsloth)
    late = needed_by_unsloth() if with_unsloth and not todo.alone else ()
    if not (todo.lines or todo.alone or late):
        (FOLDER / UNFINISHED).unlink(missing_ok=True)
        return set()
    before = versions()
    with _unfinished():
        install_needed(_installer(), todo, with_unsloth)
    importlib.invalidate_caches()
    after = versions()
    return {name for name, version in before.items() if after.get(name) != version}


def _installer() -> Installer:
    return installer_for(Path(sys.executable), FOLDER / "install.log")


def install_needed(installer: Installer, todo: Needed, with_unsloth: bool) -> None:
    """Install the packages in `todo` without changing packages that must keep their versions."""
    for line in todo.lines:
        if line.startswith(PIN):
            build: TorchBuild = "cuda" if nvidia_driver_present() else "cpu"
            install_torch(installer, line.removeprefix(PIN), build)
    if todo.lines:
        title = phrase("notebook.missing_packages", count=len(todo.lines))
        _install_beside(installer, title, todo.lines, todo.held)
    if todo.alone:
        installer.install(phrase("notebook.unsloth_without_dependencies"), "--no-deps", *todo.alone)
    importlib.invalidate_caches()
    if with_unsloth and (late := needed_by_unsloth()):
        _install_beside(installer, phrase("notebook.unsloth_dependencies"), late, todo.held)


def _install_beside(
    installer: Installer, title: str, lines: Iterable[str], held: Iterable[str]
) -> None:
    """Install the requirements `lines`, with `held` as constraints for all other packages."""
    names = {name_of(line) for line in lines}
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(line for line in held if name_of(line) not in names))
        file.flush()
        installer.install(title, "-c", file.name, *lines)


@contextmanager
def _unfinished() -> Iterator[None]:
    """Create a file that marks an unfinished installation, and remove it if the block succeeds."""
    (FOLDER / UNFINISHED).touch()
    yield
    (FOLDER / UNFINISHED).unlink()


def versions() -> dict[str, str]:
    """Return the versions of all installed packages."""
    distributions = importlib.metadata.distributions()
    return {one.metadata["Name"]: one.version for one in distributions if one.metadata["Name"]}


def loaded_of(packages: set[str]) -> set[str]:
    """Return those of `packages` that this process has already imported."""
    if not packages:
        return set()
    owners = importlib.metadata.packages_distributions()
    loaded = {name.partition(".")[0] for name in sys.modules} - LOADED_BY_EVERY_PYTHON
    return {owner for name in loaded for owner in owners.get(name, [])} & packages
