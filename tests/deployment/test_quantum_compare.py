"""`temper quantum compare`: real small trainings that differ in who answers, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from infrastructure.commands.main import main
from infrastructure.commands.quantum import compare
from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.checksums import read_record
from infrastructure.deployment import quantum_compare
from infrastructure.deployment.quantum_compare import (
    answered_by,
    compare_quantum_steps,
    compared,
    table_of,
)
from tests.deployment.runs import runs_of, small_settings


def settings_of(folder: Path, **quantum: Any) -> dict[str, Any]:
    settings = small_settings(folder, max_steps=2, checkpoint_frequency=None, metrics_sinks=[])
    return {
        **settings,
        "quantum": {"data_budget": 0.5, "max_overhead_percent": 1e6, **quantum},
        "enable_testing": False,
        "enable_monitoring": False,
    }


def test_a_comparison_trains_each_once_and_shows_them_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(json.dumps(settings_of(tmp_path)))
    assert main(["quantum", "compare", "--config", "c.yaml", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["answer"] for row in rows] == ["quantum", "greedy", "random", "none"]
    assert {row["steps"] for row in rows} == {2}
    assert len({row["eval_loss"] for row in rows}) > 1
    by_answer = {row["answer"]: row for row in rows}
    assert by_answer["quantum"]["energy"] <= by_answer["greedy"]["energy"]
    assert by_answer["greedy"]["energy"] < by_answer["random"]["energy"]
    assert (by_answer["none"]["energy"], by_answer["none"]["quantum_seconds"]) == (None, 0)
    assert [run.name for run in runs_of(tmp_path)] == sorted(Path(r["run"]).name for r in rows)
    for row in rows:
        run = Path(row["run"])
        assert read_record(run / "comparison.json") == {"rows": rows}
    report = (Path(by_answer["quantum"]["run"]) / "report.html").read_text()
    assert "monitoring.quantum_comparison_heading" in report
    assert "a random choice" in report
    # once more, as people see it: nothing is trained again
    weights = [path.stat().st_mtime_ns for path in tmp_path.rglob("final/model.safetensors")]
    assert compare_quantum_steps(DeploymentConfig(**settings_of(tmp_path))) == rows
    shown = capsys.readouterr().out.splitlines()
    assert shown[-6:] == table_of(rows)
    assert [line.split()[0] for line in shown[-5:-1]] == ["quantum", "greedy", "random", "none"]
    assert len(runs_of(tmp_path)) == len(rows)
    assert weights == [p.stat().st_mtime_ns for p in tmp_path.rglob("final/model.safetensors")]


def test_the_first_answer_is_the_samplers_whatever_the_configuration_names(tmp_path: Path) -> None:
    named = settings_of(tmp_path, answer="greedy")
    named["training"]["enabled_extensions"] = ["quantum"]
    config = DeploymentConfig(**named)
    found = {who: answered_by(config, who, 7) for who in ("sampler", "random", "none")}
    assert found["sampler"].quantum.answer == "sampler"
    assert found["random"].quantum.answer == "random"
    assert found["none"].training.extensions == []
    for one in found.values():
        assert one.training.max_steps == 7
        assert one.problems() == []


class Stopped:
    """A training that somebody stops."""

    def __init__(self, config: DeploymentConfig, say: Any) -> None:
        pass

    def run(self) -> dict[str, Any]:
        return {"status": "stopped", "reason": "SIGTERM", "signal": "SIGTERM", "steps": 1}


def test_a_comparison_that_is_stopped_explains_how_it_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantum_compare, "TrainingDeployment", Stopped)
    config = DeploymentConfig(**settings_of(tmp_path))
    assert compare(config, as_json=False) == 143
    assert "commands.comparison_stopped" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing.jsonl"], "nothing.jsonl"),
        (["--quantum-problem", "blocks"], "data_selection"),
        (
            ["--quantum-data-budget", "1"],
            "config.data_budget_keeps_everything(quantum_step=data_selection, data_budget=1.0)",
        ),
        (["--quantum-answer", "gredy"], "core.did_you_mean(meant=greedy)"),
        (["--quantum-solver", "tabuu"], "core.did_you_mean(meant=tabu)"),
    ],
    ids=str,
)
def test_wrong_input_is_a_sentence_and_trains_nothing(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = settings_of(tmp_path)
    (tmp_path / "c.yaml").write_text(json.dumps(settings))
    assert main(["quantum", "compare", "--config", "c.yaml", *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert sentence in error
    assert error.splitlines()[-1].startswith("temper: ")
    assert runs_of(tmp_path) == []


def test_the_bound_is_lifted_where_nobody_gave_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[float] = []

    class Noted(Stopped):
        def __init__(self, config: DeploymentConfig, say: Any) -> None:
            trained.append(config.quantum.max_overhead_percent)

    monkeypatch.setattr(quantum_compare, "TrainingDeployment", Noted)
    settings = settings_of(tmp_path)
    lines: list[str] = []
    compared(DeploymentConfig(**settings), lines.append)
    del settings["quantum"]["max_overhead_percent"]
    compared(DeploymentConfig(**settings), lines.append)
    assert trained == [1e6, 1e6]
    assert sum("deployment.comparison_lifts_bound" in line for line in lines) == 1


def test_steps_that_are_skipped_are_not_compared(tmp_path: Path) -> None:
    bounded = DeploymentConfig(**settings_of(tmp_path, max_overhead_percent=1e-6))
    with pytest.raises(ConfigurationError, match=r"deployment\.comparison_steps_skipped"):
        compared(bounded, lambda _: None)
    assert len(runs_of(tmp_path)) == 1
