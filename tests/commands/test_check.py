"""`temper check`: exit codes, what it prints, where the report lies."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from infrastructure.commands.main import main
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.models.model_manager import ModelManager
from infrastructure.testing import test_pipeline
from infrastructure.testing.doctor import Diagnosis
from infrastructure.testing.results import GROUPS
from tests.deployment.runs import write_settings
from tests.deployment.test_checks_of_runs import plant


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which `temper` needs no flags, and the doctor finds nothing to say."""
    write_settings(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("infrastructure.testing.preflight.examine", list)
    return tmp_path


def test_all_is_well(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == 0
    out = capsys.readouterr().out
    assert "  ok    save and resume: " in out
    assert "testing.training_speed(tokens_per_second=" in out
    report = Path(out.splitlines()[-1].removeprefix("report: "))
    assert report.is_file()
    assert list(folder.glob("runs/*/run.json")) == []


def test_quick_leaves_out_what_moves_weights(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(folder / "rows.jsonl"), "--quick"]) == 0
    out = capsys.readouterr().out
    assert "accumulation" in out
    assert "steps:" not in out
    assert "speed" not in out


def test_examples_are_shortened_as_for_a_training(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = folder / ".config/training_config.yaml"
    values = json.loads(settings.read_text())
    del values["data"]["max_length"]
    settings.write_text(json.dumps(values))
    assert main(["check", "--quick"]) == 0
    assert "data.max_length_lowered" in capsys.readouterr().out


def test_json_is_one_object_and_nothing_else(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--quick", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is True
    assert Path(report["path"]).is_file()


def test_the_preview_shows_tokens_and_loads_no_model(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelManager, "load", None)
    assert main(["check", "rows.jsonl", "--preview", "3"]) == 0
    out = capsys.readouterr().out
    assert out.count("data.token_counts") == 3
    assert out.count("⟦") == out.count("■⟧") == 3
    assert main(["check", "rows.jsonl", "--preview", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown.keys(), shown["notes"]) == ({"examples", "left_out", "notes"}, [])
    examples = shown["examples"]
    assert (len(examples), shown["left_out"]) == (2, [[], []])
    for tokens in examples:
        assert {kind for _, _, kind in tokens} == {"trained", "masked", "stop"}
        assert tokens[-1][2] == "stop"
    assert not (folder / "runs").exists()


def test_a_fault_is_exit_code_1(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert main(["check", "--quick"]) == 1
    assert "  FAIL  accumulation: testing." in capsys.readouterr().out


def test_a_warning_is_a_failure_when_strict(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = [Diagnosis("warn", "memory", "1 GiB", "close other programs")]
    monkeypatch.setattr("infrastructure.testing.preflight.examine", lambda: findings)
    assert main(["check", "--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "  WARN  installation: memory: 1 GiB",
        "        → close other programs",
    ]
    assert main(["check", "--quick", "--strict"]) == 1


@pytest.mark.parametrize("flag", ["--strict", "--rebaseline", "--quick", "--json"])
def test_what_is_given_reaches_the_checks(
    flag: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[object] = []
    report = {"verdict": "fine", "path": "report.json"}

    def has_failed(strict: bool) -> bool:
        calls.append(strict)
        return strict

    def create(config: DeploymentConfig, report: Callable[[str], None], rebaseline: bool) -> object:
        calls.append((config.data.path, rebaseline))
        report("a check")
        return pipeline

    pipeline = SimpleNamespace(
        run_tests=lambda *groups: calls.append(groups),
        generate_test_report=lambda: report,
        has_failed=has_failed,
    )
    monkeypatch.setattr(test_pipeline, "create_test_pipeline", create)
    assert main(["check", "rows.jsonl", flag]) == (flag == "--strict")
    groups = GROUPS[:1] if flag == "--quick" else GROUPS
    assert calls == [("rows.jsonl", flag == "--rebaseline"), groups, flag == "--strict"]
    lines = capsys.readouterr().out.splitlines()
    if flag == "--json":
        assert lines == [json.dumps(report)]
    else:
        assert lines[-3:] == ["a check", "fine", "report: report.json"]


def test_wrong_input_is_exit_code_2(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "nowhere.jsonl"]) == 2
    assert "nowhere.jsonl" in capsys.readouterr().err
