"""What each make target types for a person; nothing of it is run."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make as from a shell, also when these tests run under make themselves."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=outside, capture_output=True, text=True, check=False
    )


def typed(*arguments: str) -> str:
    """The commands that `make` would run."""
    done = make("--dry-run", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["train"], "./launch_training.sh"),
        (["train", "DATA_PATH=my data.jsonl"], "./launch_training.sh 'my data.jsonl'"),
        (["train", "FLAGS=--epochs 2"], "./launch_training.sh  --epochs 2"),
        (["train-resume"], ".venv/bin/temper train-resume"),
        (["train-resume", "CHECKPOINT=run@5"], ".venv/bin/temper train-resume 'run@5'"),
        (["train-eval", "MODEL=m", "DATA=d.jsonl"], ".venv/bin/temper train-eval 'm' 'd.jsonl'"),
        (["test"], ".venv/bin/python -m pytest -n 3 --dist worksteal --durations 25"),
        (["test-slow"], ".venv/bin/python -m pytest -m slow -n 3 --dist worksteal --durations 25"),
        (["test-colab"], ".venv-colab/bin/python -m pytest -n 3 --dist worksteal --durations 25"),
        (["notebooks"], ".venv/bin/python -m notebooks.build"),
    ],
)
def test_targets(arguments: list[str], command: str) -> None:
    assert any(line.rstrip().endswith(command) for line in typed(*arguments).splitlines())


def test_tests_run_last_and_after_the_checks() -> None:
    lines = [line for line in typed("test").splitlines() if line]
    assert [
        word for line in lines for word in ("ruff check", "mypy", "pytest") if word in line
    ] == [
        "ruff check",
        "mypy",
        "pytest",
    ]


@pytest.mark.parametrize("missing", ["MODEL=m", "DATA=d"])
def test_evaluation_without_model_or_data_says_how(missing: str) -> None:
    done = make("train-eval", missing)
    assert done.returncode == 2
    assert "usage: make train-eval MODEL=… DATA=…" in done.stderr


def test_help_names_every_target() -> None:
    done = make()
    declared = {
        line.removeprefix(".PHONY: ")
        for line in (ROOT / "Makefile").read_text().splitlines()
        if line.startswith(".PHONY: ")
    }
    assert {line.split()[0] for line in done.stdout.splitlines()} == declared


def test_what_make_is_told_is_not_read_as_a_setting(tmp_path: Path) -> None:
    """`make train DATA_PATH=x` must not set Temper's variable of that name a second time."""
    rules = (ROOT / "Makefile").read_text() + "\n.PHONY: probe\nprobe:\n\t@env\n"
    (tmp_path / "Makefile").write_text(rules)
    probe = ["-f", str(tmp_path / "Makefile"), "probe"]
    done = make(*probe, "DATA_PATH=x", "MODEL=m", "DATA=d")
    names = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert "PATH" in names
    assert not {"DATA_PATH", "MODEL", "DATA"} & names
