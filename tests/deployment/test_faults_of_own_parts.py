"""An error of somebody's own part in the middle of a run: whose line it was, and where to look."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infrastructure.commands.main import main
from infrastructure.core.exit_codes import ExitCode
from tests.deployment.runs import runs_of, write_settings

MODULE = """
import torch

import temper


class InTurns(temper.StandardTrainingStrategy):
    def begin_step(self, *arguments):
        raise KeyError("turn")


def loss(logits, targets):
    raise ValueError("no such loss")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "turns.py").write_text(MODULE)
    write_settings(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield tmp_path
    sys.modules.pop("turns", None)


@pytest.mark.parametrize(
    ("flags", "code", "error"),
    [
        (
            ["--strategy", "turns:InTurns"],
            ExitCode.FAILED,
            "KeyError: 'turn' at turns.py:9 (begin_step)",
        ),
        # before the first step: the held-out rows are measured with it
        (
            ["--loss", "turns:loss"],
            ExitCode.WRONG_INPUT,
            "ValueError: no such loss at turns.py:13 (loss)",
        ),
    ],
)
def test_the_screen_names_the_line_and_the_run_keeps_the_traceback(
    flags: list[str], code: ExitCode, error: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *flags, "--no-testing"]) == code
    [run] = runs_of(folder)
    kept = run / "logs/errors/traceback.txt"
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"temper: {error}commands.traceback_location(path={kept})"
    assert 'turns.py", line ' in kept.read_text()
    if code == ExitCode.FAILED:
        assert json.loads((run / "summary.json").read_text())["error"] == error
        [record] = map(json.loads, (run / "logs/errors/errors.jsonl").read_text().splitlines())
        assert record["message"] == "'turn' at turns.py:9 (begin_step)"
