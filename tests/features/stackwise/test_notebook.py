"""What a notebook shows of the stacks of a run."""

import json
from pathlib import Path
from typing import Any

import IPython.display
import pytest

import colab
from infrastructure.features.stackwise import notebook
from tests.features.stackwise.test_report import STACKWISE


def test_stacks_are_shown_and_returned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"stackwise\.notebook_no_stacks\("):
        colab.show_stacks(tmp_path)
    (tmp_path / "stackwise.json").write_text(json.dumps(STACKWISE))
    (tmp_path / "metrics.jsonl").write_text('{"step": 4, "loss": 2.5}\n')
    expected = [
        {"name": "layer 1 of 2", "first_step": 1, "last_step": 4, "loss": 2.5},
        {"name": "layer 2 of 2", "first_step": 5, "last_step": 8, "loss": None},
    ]
    assert colab.show_stacks(tmp_path) == expected
    phase = "phase_steps(number=1, name=layer 1 of 2, first=1, last=4), loss 2.5"
    assert phase in capsys.readouterr().out
    shown: list[Any] = []
    monkeypatch.setattr(notebook, "in_notebook_kernel", lambda: True)
    monkeypatch.setattr(IPython.display, "display", shown.append)
    assert colab.show_stacks(str(tmp_path)) == expected
    (frame,) = shown
    assert "Block-wise training" in frame.data
