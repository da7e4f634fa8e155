"""The hooks of a commit, in a repository of git with the project's own configuration of them."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
problems_of = runpy.run_path(str(ROOT / ".ci/commit_message.py"))["problems_of"]
GOOD = "Say what is done\n\nBecause somebody will want to know why.\n"
TIDY = '"""A module."""\n\nNUMBER: int = 1\n'


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("", "is empty"),
        ("# only what git writes\n", "is empty"),
        (f"{'a' * 73}\n\nWhy.\n", "the subject has 73 characters"),
        ("What is done.\n\nWhy.\n", "full stop"),
        ("What is done\nWhy.\n", "the second line is not empty"),
        ("What is done\n", "there is no body"),
        ("What is done\n\n# Please enter the commit message\n", "there is no body"),
    ],
)
def test_a_message_that_a_reader_cannot_use_is_refused(message: str, sentence: str) -> None:
    assert sentence in "; ".join(problems_of(message))


@pytest.mark.parametrize("message", [GOOD, f"{'a' * 72}\n\nWhy.\n", "Merge branch 'x'\n"])
def test_a_message_that_a_reader_can_use_is_taken(message: str) -> None:
    assert problems_of(message) == []


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the hooks installed, and this environment where they look for it."""
    folder = tmp_path_factory.mktemp("hooked")
    for name in (".pre-commit-config.yaml", ".ci/commit_message.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "pyproject.toml").write_text('[tool.mypy]\nfiles = ["module.py"]\nstrict = true\n')
    (folder / ".gitignore").write_text(".venv\n__pycache__\n.mypy_cache\n.ruff_cache\n")
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    run(folder, "git", "init", "-q")
    run(folder, "git", "config", "user.name", "Somebody")
    run(folder, "git", "config", "user.email", "somebody@example.org")
    assert run(folder, sys.executable, "-m", "pre_commit", "install").returncode == 0
    return folder


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    quiet = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    home = {"PRE_COMMIT_HOME": str(folder / ".git/pre-commit"), "PRE_COMMIT_COLOR": "never"}
    return subprocess.run(
        command, cwd=folder, env=quiet | home, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    ("source", "message", "hooks"),
    [
        (
            '"""A module."""\n\nimport os\n\nNUMBER: int  =  "one"\n',
            GOOD,
            ["ruff check", "ruff format", "mypy"],
        ),
        (TIDY, "What is done\n", ["commit message"]),
    ],
)
def test_a_commit_that_would_not_pass_is_not_made(
    repository: Path, source: str, message: str, hooks: list[str]
) -> None:
    (repository / "module.py").write_text(source)
    run(repository, "git", "add", "-A")
    made = run(repository, "git", "commit", "-q", "-m", message)
    assert made.returncode != 0
    failed = [line for line in made.stderr.splitlines() if line.endswith("Failed")]
    assert [line.partition("...")[0] for line in failed] == hooks, made.stderr


def test_a_commit_that_passes_is_made(repository: Path) -> None:
    (repository / "module.py").write_text(TIDY)
    run(repository, "git", "add", "-A")
    made = run(repository, "git", "commit", "-q", "-m", GOOD)
    assert made.returncode == 0, made.stderr
    assert run(repository, "git", "status", "--porcelain").stdout == ""
