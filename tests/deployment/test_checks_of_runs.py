"""A run that cannot succeed does not start; one that is checked shows it; checks can be off."""

import json
import time
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.backup.state.run_files import read_run_files
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.console import Report
from infrastructure.core.errors import PreflightError
from infrastructure.deployment import deploy_training
from infrastructure.deployment.deploy_training import (
    TrainingDeployment,
    checked_before,
    keep_round,
)
from infrastructure.monitoring.records.run_reader import read_rounds
from infrastructure.run.directory import RunDirectory
from infrastructure.testing.results import MARKS, CheckResult
from infrastructure.training.model_adapters.base_adapter import LossOutput
from infrastructure.training.model_adapters.standard_adapter import StandardModelAdapter
from infrastructure.training.placement import Placement
from tests.deployment.runs import deploy, newest_step, runs_of, small_settings


def small_config(folder: Path, **training: Any) -> DeploymentConfig:
    return DeploymentConfig(**{**small_settings(folder, **training), "enable_testing": True})


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter gives means where sums are meant."""
    given = StandardModelAdapter.compute_loss

    def compute_loss(self: Any, model: torch.nn.Module, batch: dict[str, Any]) -> LossOutput:
        output = given(self, model, batch)
        return LossOutput(output.loss_sum / max(1, output.num_items), output.num_items)

    monkeypatch.setattr(StandardModelAdapter, "compute_loss", compute_loss)


def test_a_run_is_checked_before_its_first_step_and_shows_it(tmp_path: Path) -> None:
    run, lines = deploy(small_config(tmp_path, max_steps=1))
    (checked,) = [line for line in lines if line.startswith("deployment.checks_line(")]
    assert "failed" not in checked
    (one,) = json.loads((run / "checks.json").read_text())
    assert one["step"] == 0
    assert "passed" in checked
    assert "skipped" not in checked
    assert {check["status"] for check in one["checks"]} <= {"pass", "warn", "skipped"}
    page = (run / "report.html").read_text()
    assert "monitoring.checks_heading" in page
    assert one["verdict"] in page
    assert checked == f"deployment.checks_line(verdict={one['verdict']})"
    assert "files/checks.json@000000000" in read_run_files(run)  # it goes where the run goes


def test_a_run_that_cannot_succeed_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(
        PreflightError, match=r"testing\.preflight_failed\(.*accumulation: testing\."
    ):
        deploy(small_config(tmp_path))
    assert runs_of(tmp_path) == []


def test_without_testing_it_starts_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    config = small_config(tmp_path, max_steps=1)
    config.enable_testing = False
    run, lines = deploy(config)
    assert not (run / "checks.json").exists()
    assert not [line for line in lines if line.startswith("deployment.checks_line(")]
    assert "Checked before" not in (run / "report.html").read_text()


def test_answers_that_all_lose_their_end_are_not_trained_unless_the_run_has_begun(
    tmp_path: Path,
) -> None:
    rows = [{"prompt": f"{n}", "completion": "y z " * 40} for n in range(24)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = small_config(tmp_path, max_steps=1)
    with pytest.raises(PreflightError, match=r"testing\.every_answer_truncated"):
        deploy(config)
    assert runs_of(tmp_path) == []
    config.enable_testing = False
    run, _ = deploy(config)
    further = small_config(tmp_path, max_steps=2)
    lines: list[str] = []
    TrainingDeployment(further, say=lines.append, accept=["max_steps"]).resume(RunDirectory(run))
    assert newest_step(run) == 2
    assert any("testing.every_answer_truncated" in line for line in lines)


def test_the_variable_of_the_specification_switches_it_off() -> None:
    from infrastructure.config.sources.load import load_config

    assert load_config(environment={"DISABLE_TESTING": "1"}).enable_testing is False


RESULTS = [CheckResult("loss", "fail", "it is <b>bad</b>")]


def test_a_round_is_added_to_those_that_are_there(tmp_path: Path) -> None:
    keep_round(tmp_path, 0, RESULTS)
    keep_round(tmp_path, 7, RESULTS)
    assert [one["step"] for one in read_rounds(tmp_path)] == [0, 7]


@pytest.mark.parametrize("is_verbose", [False, True])
def test_warnings_are_shown_and_what_was_not_checked_on_request(
    is_verbose: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [
        CheckResult("one", "pass", "as it should be", seconds=1.0),
        CheckResult("two", "warn", "it is slow", "train less"),
        CheckResult("three", "skipped", "no GPU", seconds=9.0),
    ]
    given: list[Any] = []

    def check(*of: Any) -> list[CheckResult]:
        given.append(of)
        return results

    monkeypatch.setattr(deploy_training, "preflight", check)
    trainer: Any = SimpleNamespace(placement=Placement())
    config = DeploymentConfig(output_dir=str(tmp_path), enable_testing=True)
    lines: list[str] = []
    report = Report(lines.append, is_verbose)
    assert checked_before(config, trainer, report, True) == results
    assert given == [(trainer, tmp_path, True)]
    verdict = "1 passed, 1 with a warning in 1.0 s"
    assert [line.strip() for line in lines] == [
        f"{MARKS['warn']}  two: it is slow",
        "→ train less",
        f"deployment.checks_line(verdict={verdict})",
        *["Not checked: three: no GPU"] * is_verbose,
    ]
    lines.clear()
    results.pop(1)
    checked_before(config, trainer, report)
    assert given[1:] == [(trainer, tmp_path, False)]
    assert lines[0] == "deployment.checks_line(verdict=1 passed in 1.0 s)"
    keep_round(tmp_path, 7, results)
    [kept] = read_rounds(tmp_path)
    assert (kept["step"], kept["verdict"]) == (7, "1 passed in 1.0 s")
    assert [(one["name"], one["status"]) for one in kept["checks"]] == [
        *(("one", "pass"), ("three", "skipped"))
    ]
    assert abs(time.time() - datetime.fromisoformat(kept["time"]).timestamp()) < 60
    keep_round(tmp_path, 8, [])
    assert len(read_rounds(tmp_path)) == 1


@pytest.mark.parametrize("contents", ["{", "3", '["x", null]'])
def test_a_damaged_file_of_rounds_is_begun_anew(tmp_path: Path, contents: str) -> None:
    (tmp_path / "checks.json").write_text(contents)
    keep_round(tmp_path, 1, RESULTS)
    assert [one["step"] for one in read_rounds(tmp_path)] == [1]


def test_rounds_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy_training, "MAX_ROUNDS", 3)
    for step in range(5):
        keep_round(tmp_path, step, RESULTS)
    assert [one["step"] for one in read_rounds(tmp_path)] == [2, 3, 4]


def test_rounds_that_cannot_be_written_stop_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run").write_text("a file where the folder should be")
    keep_round(tmp_path / "run", 1, RESULTS)
    file = tmp_path / "run/checks.json"
    assert f"deployment.file_not_written(file={file}, error=" in caplog.text
