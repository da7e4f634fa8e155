"""The installed packages and their requirements, read from metadata without importing a package.

This is quick, and works even if a package cannot be imported, or breaks others when imported. The
tested versions come from Temper's own metadata, into which the build copies the requirement files
(the extras `tested` and `colab` of pyproject.toml).
"""

import importlib.metadata
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

CUDA_LINE = re.compile(r"^cuda\b[^=]*=\s*['\"](?P<version>[^'\"]+)['\"]", re.MULTILINE)


class Installation:
    """The packages that are installed in the directories of `search_path`.

    By default, these are the directories of this interpreter.
    """

    def __init__(self, search_path: Sequence[str] | None = None) -> None:
        self._search_path = list(sys.path if search_path is None else search_path)

    def version(self, package: str) -> Version | None:
        """Return a package's installed version; None if it is missing or its metadata is broken."""
        distribution = self._distribution(package)
        if distribution is None or "Version" not in distribution.metadata:
            return None
        try:
            return Version(distribution.metadata["Version"])
        except InvalidVersion:
            return None

    def requirements(self, package: str, extra: str = "") -> list[Requirement]:
        """Return the requirements of `package`, or of its `extra`, on this platform."""
        distribution = self._distribution(package)
        requirements = [_parsed(line) for line in (distribution and distribution.requires) or []]
        return [
            r for r in requirements if r and _applies(r, extra) and not (extra and _applies(r, ""))
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
