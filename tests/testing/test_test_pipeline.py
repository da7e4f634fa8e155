"""The pipeline as the specification writes it; its groups, its report, its timings."""

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.json_cache import JsonCache
from infrastructure.testing import preflight, test_pipeline
from infrastructure.testing.results import CheckResult, verdict
from infrastructure.testing.speed_checks import FILE, _are_measurements, check_speed, work_of
from infrastructure.testing.subject import Subject
from infrastructure.testing.test_pipeline import (
    CheckPipeline,
    create_test_pipeline,
)
from infrastructure.training.resume.fingerprint import installed_versions
from tests.deployment.runs import small_config, small_settings
from tests.slow import slow
from tests.testing.check_models import by_name, subject_of

ROW = '{"prompt": "2 + 2", "completion": "4"}\n'
SLOW_SECONDS = 0.2  # a step of the tiny model takes a few hundredths


@pytest.fixture
def config(tmp_path: Path) -> DeploymentConfig:
    return small_config(tmp_path)


def test_the_specification_s_sample_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On what the configuration file says; there is no other argument."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".config").mkdir()
    settings = json.dumps(small_settings(tmp_path))  # JSON is YAML
    (tmp_path / ".config/training_config.yaml").write_text(settings)
    names: dict[str, Any] = {}
    exec(
        """
from infrastructure.testing.test_pipeline import create_test_pipeline

# Create test pipeline
pipeline = create_test_pipeline()

# Run all tests
results = pipeline.run_all_tests()

# Generate test report
report = pipeline.generate_test_report()
""",
        names,
    )
    results, report = names["results"], names["report"]
    assert list(results) == ["unit", "integration", "performance"]
    assert report["passed"] is True
    assert report["counts"]["fail"] == 0
    assert report["counts"]["pass"] >= 14
    assert report["about"]["model"]["name"] == "embedded"
    assert [c["name"] for c in report["checks"] if c["group"] == "performance"] == ["speed"]


def test_a_report_of_nothing_checks_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: CheckPipeline, group: str, subject: object) -> list[CheckResult]:
        return [CheckResult(group, "pass", "fine")]

    monkeypatch.setattr(CheckPipeline, "_subject", lambda *_: None)
    monkeypatch.setattr(test_pipeline, "describe_subject", lambda _: {"device": "cpu"})
    monkeypatch.setattr(CheckPipeline, "_run", run)
    report = CheckPipeline(DeploymentConfig()).generate_test_report(tmp_path / "here")
    assert [check["name"] for check in report["checks"]] == ["unit", "integration", "performance"]
    assert report["path"] == str(tmp_path / "here/report.json")


def test_nothing_is_left_but_the_report_and_the_cache(
    config: DeploymentConfig, tmp_path: Path
) -> None:
    """No run, no checkpoint, and the random numbers go on as if nothing had been."""
    torch.manual_seed(3)
    expected = torch.rand(1)
    before = {path.name for path in tmp_path.iterdir()}
    create_test_pipeline(config).run_tests("integration")
    torch.manual_seed(3)
    assert torch.equal(torch.rand(1), expected)
    assert {path.name for path in tmp_path.iterdir()} - before <= {"cache", "runs"}
    assert list(tmp_path.glob("runs/*")) == []


def test_each_result_is_shown_at_once_and_the_report_is_written_as_json(
    config: DeploymentConfig,
) -> None:
    lines: list[str] = []
    pipeline = create_test_pipeline(config, report=lines.append)
    pipeline.run_tests("unit")
    names = [result.name for result in pipeline.all_results]
    assert [line[8:].split(":")[0] for line in lines if not line.startswith("        ")] == names
    report = pipeline.generate_test_report()
    file = Path(report.pop("path"))
    assert json.loads(file.read_text()) == report
    assert file.is_relative_to(Path(config.output_dir) / "checks")


@slow
def test_a_model_that_became_slower_is_reported(config: DeploymentConfig) -> None:
    subject = subject_of(config)
    assert "testing.kept_as_baseline" in check_speed(subject).text
    slow_down(subject, SLOW_SECONDS)
    result = check_speed(subject)
    assert result.status == "warn"
    assert "testing.measure_slower(name=seconds_per_step" in result.text
    assert "testing.measure_slower(name=seconds_per_forward" in result.text
    assert len(earlier_times(subject)) == 1, "a slow measurement became part of the baseline"
    assert "testing.kept_as_baseline" in check_speed(subject, rebaseline=True).text
    (taken,) = earlier_times(subject)
    assert taken["seconds_per_forward"] > SLOW_SECONDS


def earlier_times(subject: Subject) -> list[dict[str, float]]:
    file = Path(str(subject.trainer.cache_config.directory)) / FILE
    return JsonCache(file, "the baseline", _are_measurements).get(work_of(subject)) or []


def slow_down(subject: Subject, seconds: float) -> None:
    body: Any = subject.model
    body.model.register_forward_pre_hook(lambda *_: time.sleep(seconds))


def test_a_check_that_raises_has_failed(config: DeploymentConfig) -> None:
    def check_something(subject: Subject) -> Any:
        raise KeyError("the model\nhas gone")

    result = preflight.run_check(check_something, subject_of(config), "unit")
    assert (result.name, result.status) == ("something", "fail")
    place = r"place=test_test_pipeline.py:\d+ \(check_something\)"
    error = re.escape("testing.own_code_raised(error=KeyError: 'the model\\nhas gone', ")
    assert re.fullmatch(error + place + r"\)", result.text)


def test_a_check_without_enough_memory_is_skipped(config: DeploymentConfig) -> None:
    def check_something(subject: Subject) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory: planted")

    result = preflight.run_check(check_something, subject_of(config), "unit")
    assert result.status == "skipped"


def test_a_model_without_text_is_checked_as_far_as_it_goes(tmp_path: Path) -> None:
    config = DeploymentConfig(
        model_name="tactical_mappo", output_dir=str(tmp_path / "runs"), device="cpu"
    )
    config.cache.directory = str(tmp_path / "cache")
    pipeline = create_test_pipeline(config)
    found = by_name([result for group in pipeline.run_all_tests().values() for result in group])
    assert [name for name, result in found.items() if result.status == "fail"] == []
    passed = {name for name, result in found.items() if result.status == "pass"}
    assert passed >= {"loss", "accumulation", "optimizer", "steps", "save and resume"}
    assert passed >= {"saved model", "speed", "weights"}
    assert found["labels"].status == "skipped"


@pytest.mark.parametrize(
    ("files", "data", "doubt"),
    [
        ({"rows.jsonl": ROW}, {"path": "rows.jsonl"}, "data.file_has_one_row(file=rows.jsonl"),
        (
            {"README.md": "# Rows"},
            {"path": "."},
            "data.folder_only_has_document(folder=., file=README.md)",
        ),
        ({"rows.jsonl": ROW}, {"path": "rows.jsonl", "accept_small_data": True}, None),
        ({"rows.jsonl": 2 * ROW}, {"path": "rows.jsonl"}, None),
    ],
)
def test_doubtful_data_does_not_pass(
    files: dict[str, str],
    data: dict[str, Any],
    doubt: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    pipeline = create_test_pipeline(DeploymentConfig(data=data))
    monkeypatch.setattr(CheckPipeline, "_checks", lambda *_: ())  # of the model
    fine = CheckResult("installation", "pass", "fine")
    monkeypatch.setattr(test_pipeline, "installation_check", lambda: fine)
    results = by_name(pipeline._run("unit", cast(Subject, None)))
    assert ("data" in results) is (doubt is not None)
    if doubt is not None:
        assert results["data"].status == "fail"
        assert doubt in results["data"].text
        assert results["data"].remedy == "data.confirm_small_data()"


def test_a_report_of_a_failed_check_has_failed(tmp_path: Path) -> None:
    results = [
        CheckResult("loss", "pass", "fine", seconds=0.25),
        CheckResult("steps", "fail", "a < b", "mend it", "integration", seconds=0.5),
    ]
    pipeline = CheckPipeline(DeploymentConfig())
    pipeline.about = {"device": "cpu"}
    for number in (1, 2):
        pipeline.results = {"unit": results[:number]}
        report = pipeline.generate_test_report(tmp_path / "new/here")
        assert report.pop("created").startswith(time.strftime("%Y-%m-"))
        assert report == {
            "verdict": verdict(results[:number]),
            "passed": number == 1,
            "counts": {"pass": 1, "warn": 0, "fail": number - 1, "skipped": 0},
            "checks": [result.to_dict() for result in results[:number]],
            "about": {"device": "cpu"},
            "path": str(tmp_path / "new/here/report.json"),
        }
    pipeline.results = {"unit": results[:1], "integration": [replace(results[1], status="warn")]}
    assert (pipeline.has_failed(), pipeline.has_failed(strict=True)) == (False, True)


def test_only_the_groups_that_are_requested_run_and_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CheckPipeline, "_subject", lambda *_: None)
    monkeypatch.setattr(test_pipeline, "describe_subject", lambda _: {"device": "cpu"})
    monkeypatch.setattr(CheckPipeline, "_run", lambda _, group, subject: [group])
    pipeline = CheckPipeline(DeploymentConfig())
    assert pipeline.run_tests("performance", "unit") == {
        "unit": ["unit"],
        "performance": ["performance"],
    }
    assert [*pipeline.run_tests("performance")] == ["performance"]
    assert [*pipeline.run_all_tests()] == ["unit", "integration", "performance"]
    assert pipeline.all_results == ["unit", "integration", "performance"]


def test_what_is_checked_is_described(config: DeploymentConfig) -> None:
    subject = subject_of(config)
    assert test_pipeline.describe_subject(subject) == {
        "model": subject.adapter.describe(),
        "data": config.data.path,
        "num_examples": subject.data.num_examples,
        "data_fingerprint": subject.data.fingerprint,
        "precision": subject.trainer.precision.name,
        "device": "cpu",
        "versions": installed_versions(),
    }
