"""The README of a built package: its links lead to the repository, as an index has no folders.

Everything else of the package is in pyproject.toml, the repository's one address too.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
LINK = re.compile(r"(?P<image>!?)(?P<name>\[[^\]]*\])\((?!https?:|#|mailto:)(?P<path>[^)\s]+)\)")


def absolute_links(text: str, address: str) -> str:
    """`text` with each link to a file of the repository leading to it at `address`; to a picture
    as the picture itself."""

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link["image"] else "blob"
        return f"{link['image']}{link['name']}({address}/{kind}/main/{link['path']})"

    return LINK.sub(absolute, text)


def readme() -> str:
    """README.md for who sees it away from its folder."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return absolute_links((ROOT / "README.md").read_text(), project["urls"]["Repository"])


setup(long_description=readme(), long_description_content_type="text/markdown")
