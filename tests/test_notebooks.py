"""Notebooks are thin, stripped of outputs, and every line of Python in them runs."""

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))
MAX_CELLS = MAX_LINES = 10


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]


def python_of(cell: dict[str, Any]) -> str:
    """The cell without the lines that only a notebook understands."""
    return "".join(line for line in cell["source"] if not line.startswith(("!", "%")))


def test_there_is_a_quickstart() -> None:
    assert [path.name for path in NOTEBOOKS][:1] == ["00_quickstart.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_thin_and_stripped(path: Path) -> None:
    cells = code_cells(path)
    assert len(cells) <= MAX_CELLS
    for cell in cells:
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        assert len(cell["source"]) <= MAX_LINES
        words = python_of(cell).split()
        assert not {"def", "class", "for", "while", "lambda"} & set(words)


def test_the_quickstart_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All cells in order, with fewer steps than a person would take."""
    settings = {
        "MODEL_NAME": "embedded",
        "OUTPUT_DIR": str(tmp_path),
        "TEMPER_TRAINING__MAX_STEPS": "2",
        "TEMPER_TRAINING__VALIDATION_PROMPTS": "4",
        "TEMPER_MODEL__EMBEDDED__HIDDEN_SIZE": "32",
        "TEMPER_MODEL__EMBEDDED__NUM_LAYERS": "1",
        "TEMPER_CACHE__DIRECTORY": str(tmp_path / "cache"),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    shown: dict[str, Any] = {}
    for cell in code_cells(NOTEBOOKS[0]):
        exec(python_of(cell), shown)
    assert shown["summary"]["status"] == "finished"
    assert "<svg" in Path(shown["summary"]["paths"]["report"]).read_text()
