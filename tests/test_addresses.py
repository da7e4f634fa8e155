"""Addresses in documents, notebooks and the package: well formed, and the project's own all from
the one address in pyproject.toml. Nothing is asked of a network.

Relative links and their anchors are test_documents.py's.
"""

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[1]
ADDRESS = re.compile(r"https?://[^\s)\"'`<>\]…]+")
HERE = ("127.0.0.1", "localhost")
KINDS = ("*.md", "*.txt", "*.yml", "*.ipynb", "pyproject.toml")
# One's own copy of a file on these hosts has the repository's name in its path.
OF_REPOSITORIES = {
    "github.com": "/",
    "raw.githubusercontent.com": "/",
    "colab.research.google.com": "/github/",
    "kaggle.com": "/kernels/welcome?src=https://github.com/",
}


@cache
def own() -> tuple[str, str, str]:
    """Owner and name of the repository, and the address of the documentation."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    owner, name = urlsplit(urls["Repository"]).path.strip("/").split("/")
    return owner, name, urls["Documentation"]


def files() -> list[str]:
    command = ["git", "ls-files", "-z", "--", *KINDS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split("\0") if name and not name.startswith("tests/")]


def texts(name: str) -> Iterator[str]:
    """What people read of a file: of a notebook its cells."""
    text = (ROOT / name).read_text("utf-8")
    if name.endswith(".ipynb"):
        yield from ("".join(cell["source"]) for cell in json.loads(text)["cells"])
    else:
        yield text


def addresses(name: str) -> list[str]:
    found = [found for text in texts(name) for found in ADDRESS.findall(text)]
    return [address.rstrip(".,;:*|\\") for address in found]


def fault(address: str) -> str | None:
    """What is wrong with an address; None: nothing that can be seen without a network."""
    parts = urlsplit(address)
    host = (parts.hostname or "").removeprefix("www.")
    if host in HERE:
        return None
    if parts.scheme != "https":
        return "is not https"
    if not re.fullmatch(r"([a-z0-9-]+\.)+[a-z]{2,}", host):
        return "has no host"
    owner, name, pages = own()
    if host.endswith(".github.io"):
        return None if address.startswith(pages) else "is not the documentation's address"
    start = OF_REPOSITORIES.get(host)
    path = unquote(parts.path) + (f"?{parts.query}" if parts.query else "")
    if start is None or not path.startswith(start):
        return None
    theirs, _, rest = path.removeprefix(start).partition("/")
    repository, _, inside = rest.partition("/")
    if owner != theirs:
        return "is another owner's" if repository.removesuffix(".git") == name else None
    if repository.removesuffix(".git") != name:
        return "is another repository of the owner"
    kind, _, place = inside.partition("/")
    if kind in ("blob", "tree", "raw") and not (ROOT / place.partition("/")[2]).exists():
        return "leads to no file"
    return None


@pytest.mark.parametrize("name", files())
def test_addresses_are_well_formed_and_the_project_s_own_are_one(name: str) -> None:
    assert [(address, wrong) for address in addresses(name) if (wrong := fault(address))] == []


def test_there_are_addresses_to_look_at() -> None:
    owner, name, _ = own()
    of_colab = [a for file in files() for a in addresses(file) if f"/github/{owner}/{name}/" in a]
    assert len(of_colab) > 10


@pytest.mark.parametrize(
    ("address", "wrong"),
    [
        ("http://huggingface.co/docs", "is not https"),
        ("https://huggingface/docs", "has no host"),
        ("https://github.com/somebody/{name}/issues", "is another owner's"),
        ("https://github.com/{owner}/{name}-old", "is another repository of the owner"),
        ("https://github.com/{owner}/{name}/blob/main/docs/gone.md", "leads to no file"),
        ("https://colab.research.google.com/github/{owner}/{name}/blob/main/x", "leads to no file"),
        ("https://somebody.github.io/{name}", "is not the documentation's address"),
    ],
)
def test_a_wrong_one_is_noticed(address: str, wrong: str) -> None:
    owner, name, _ = own()
    assert fault(address.format(owner=owner, name=name)) == wrong
