"""What a notebook shows of quantum steps."""

import json
from pathlib import Path
from typing import Any

import IPython.display
import pytest

import colab
from infrastructure.features.quantum import notebook


def test_quantum_steps_are_shown_and_returned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [
        {
            **{"step": 0, "epoch": 0, "problem": "block_selection", "outcome": "answered"},
            **{"chosen": "blocks 1 of 2 train", "answered_by": "exact", "energy": -0.5},
            **{"num_variables": 2, "alternatives": {"top": -0.25}, "seconds": 0.5},
        }
    ]
    (tmp_path / "quantum.json").write_text(json.dumps({"records": records}))
    assert colab.show_quantum_steps(tmp_path) == records
    shown = capsys.readouterr().out
    assert "step 0" in shown
    assert "report.html" not in shown
    (tmp_path / "report.html").write_text("there")
    colab.show_quantum_steps(tmp_path)
    assert f"quantum.steps_in(report={tmp_path / 'report.html'})" in capsys.readouterr().out
    shown: list[Any] = []
    monkeypatch.setattr(notebook, "in_notebook_kernel", lambda: True)
    monkeypatch.setattr(IPython.display, "display", shown.append)
    assert colab.show_quantum_steps(str(tmp_path)) == records
    (frame,) = shown
    assert "blocks 1 of 2 train" in frame.data
    assert "&lt;!DOCTYPE html&gt;" in frame.data
