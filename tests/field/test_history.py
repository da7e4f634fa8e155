"""D6, D9, D10: a run that was changed under way, measured on other rows, or copied, says so."""

import json
from pathlib import Path
from typing import Any

import pytest

from infrastructure.backup.format.store import Store
from infrastructure.commands.main import main
from infrastructure.core.exit_codes import ExitCode
from infrastructure.deployment.export import EXPORT_FILE, export_model
from infrastructure.deployment.export_request import ExportRequest
from infrastructure.deployment.one_call import train as train_from_python
from infrastructure.run.checkpoint_paths import by_step
from infrastructure.run.directory import RunDirectory
from tests.deployment.runs import runs_of, write_settings

CHANGED = ["--max-steps", "8", "--learning-rate", "1e-4"]


def record_of(run: Path, name: str = "run.json") -> dict[str, Any]:
    return dict(json.loads((run / name).read_text()))


def summary_of(run: Path) -> dict[str, Any]:
    return record_of(run, "summary.json")


def train(*flags: str) -> int:
    return main(["train", *flags])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which `temper train` is the small run."""
    monkeypatch.chdir(tmp_path)
    write_settings(tmp_path)
    return tmp_path


@pytest.fixture
def changed(folder: Path) -> Path:
    """A run of three steps that was extended to eight, with another learning rate."""
    assert train("--learning-rate", "1e-3", "--max-steps", "3", "--name", "one") == ExitCode.DONE
    [run] = runs_of(folder)
    accepted = ["--accept", "max_steps,learning_rate"]
    assert main(["train-resume", str(run), *CHANGED, *accepted]) == ExitCode.DONE
    return run


def test_d9_a_changed_run_passes_for_none_of_its_settings(folder: Path, changed: Path) -> None:
    assert train(*CHANGED, "--name", "three") == ExitCode.DONE
    [as_last] = [run for run in runs_of(folder) if run != changed]
    assert summary_of(as_last)["steps"] == 8
    assert "history" not in record_of(as_last)
    summary = train_from_python(
        config_file=folder / ".config/training_config.yaml", max_steps=3, learning_rate=1e-3
    )
    assert summary["steps"] == 3
    assert Path(summary["paths"]["run"]).resolve() not in (changed.resolve(), as_last.resolve())
    assert len(runs_of(folder)) == 3
    # Each of them is found again, the changed one by what changed it.
    assert train(*CHANGED) == ExitCode.DONE
    assert train(*CHANGED, "--accept", "max_steps,learning_rate") == ExitCode.DONE
    assert len(runs_of(folder)) == 3


def test_d9_what_changed_is_told_wherever_the_run_is_shown(
    changed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [entry] = record_of(changed)["history"]
    assert entry["step"] == 3
    assert {c["name"]: (c["was"], c["is"]) for c in entry["changes"]} == {
        "learning_rate": (1e-3, 1e-4),
        "max_steps": (3, 8),
    }
    assert entry["when"]
    assert entry["command"]
    assert summary_of(changed)["history"] == [entry]
    page = (changed / "report.html").read_text()
    assert "Changed under way" in page
    capsys.readouterr()
    assert main(["list", "--json"]) == ExitCode.DONE
    [row] = json.loads(capsys.readouterr().out)["runs"]
    assert row["changed_after"] == [3]
    exported = tmp_path / "export"
    export_model(RunDirectory(changed), None, exported, ExportRequest())
    told = record_of(exported, EXPORT_FILE)["history"]
    assert [(one["after_step"], one["name"]) for one in told] == [
        (3, one["name"]) for one in entry["changes"]
    ]
    card = (exported / "README.md").read_text()
    assert "`learning_rate` 0.001 (steps 1 to 3), 0.0001 (steps 4 to 8)" in card
    early = tmp_path / "early"
    export_model(RunDirectory(changed), checkpoint_at(changed, 2), early, ExportRequest())
    assert record_of(early, EXPORT_FILE)["history"] == [], "before anything changed"
    assert "`learning_rate` 0.001," in (early / "README.md").read_text()


def checkpoint_at(run: Path, step: int) -> Path:
    return by_step(Store(run / "checkpoints"))[step]
