"""A run by TRL is forecast in the words of every run, and compared with the truth at its end."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.messages import phrase
from infrastructure.deployment import method_forecast
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.deployment.forecast import Forecast
from infrastructure.deployment.forecasting import forecast
from infrastructure.deployment.method_forecast import evaluations_left, saves_left
from infrastructure.optimization.batch_size import DoesNotFitError
from infrastructure.optimization.memory_prediction import MemoryBudget
from infrastructure.run.directory import RunDirectory
from infrastructure.run.finalize import read_summary
from infrastructure.training.core import precision, product_choice
from infrastructure.training.methods.trl_training import TrlTraining
from tests.training.methods.method_runs import configuration, in_fork, run_folder


def test_a_run_by_trl_is_forecast_before_its_first_step_and_compared_at_its_end(
    tmp_path: Path, saved_llama: Path
) -> None:
    more: dict[str, Any] = {"training": {"max_steps": 20, "deadline": "2h"}}
    config = configuration("dpo", tmp_path, saved_llama, price_per_hour="3 EUR", **more)

    def trained() -> None:
        lines: list[str] = []
        TrainingDeployment(config, lines.append).run()
        (tmp_path / "lines.txt").write_text("\n".join(lines))

    assert in_fork(trained) == 0
    lines = (tmp_path / "lines.txt").read_text().splitlines()
    [line] = [line for line in lines if "deployment.forecast_summary" in line]
    assert " EUR," in line
    assert "num_steps=20" in line
    [starts] = [line for line in lines if "deployment.training_starts" in line]
    assert lines.index(line) < lines.index(starts)
    run = run_folder(config)
    summary = read_summary(RunDirectory(run))
    rows = {row["what"]: row for row in summary["forecast"]}
    assert rows.keys() == {"seconds", "peak_memory_bytes", "disk_bytes"}
    assert abs(rows["peak_memory_bytes"]["error"]) < 0.15
    assert abs(rows["disk_bytes"]["error"]) < 0.3
    assert summary["cost"]["text"].endswith("EUR")
    assert any(line.startswith("run.total_cost(") for line in lines)
    assert json.loads((run / "forecast.json").read_text())["num_steps"] == 20
    assert "time from the first step to the end" in (run / "report.html").read_text()


def test_it_is_measured_without_a_run(tmp_path: Path, saved_llama: Path) -> None:
    """What the form of a notebook shows."""
    config = configuration("grpo", tmp_path, saved_llama)

    def measured_alone() -> None:
        measured = forecast(config)
        assert measured.num_steps == 8
        assert measured.has_growing_answers
        assert "deployment.forecast_growing_answers" in measured.lines()[0]
        assert not (tmp_path / "runs").exists()

    assert in_fork(measured_alone) == 0


def test_it_is_measured_in_the_format_that_the_run_will_train_in(
    tmp_path: Path, saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "best_precision", lambda device: "bf16")
    monkeypatch.setattr(product_choice, "product_seconds", lambda: {"bf16": 2.0, "fp32": 1.0})
    config = configuration("dpo", tmp_path, saved_llama, training={"mixed_precision": True})

    def watched(training: TrlTraining, trainer: Any, folder: Path) -> Forecast:
        assert not trainer.args.bf16
        return measured(training, trainer, folder)

    measured = method_forecast.measured
    monkeypatch.setattr(method_forecast, "measured", watched)
    assert in_fork(lambda: forecast(config)) == 0


def test_what_does_not_fit_is_refused_before_the_first_step(
    tmp_path: Path, saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryBudget, "limit_bytes", lambda self, device: 1 << 20)
    config = configuration("dpo", tmp_path, saved_llama)

    def refused() -> None:
        with pytest.raises(DoesNotFitError, match=r"methods\.micro_batch_too_large"):
            TrainingDeployment(config, lambda line: None).run()

    assert in_fork(refused) == 0
    assert not (run_folder(config) / "final").exists()


def test_no_smaller_pieces_are_promised_where_there_are_none() -> None:
    shown = Forecast(
        num_steps=10,
        step_seconds=1.0,
        seconds=10.0,
        peak_memory_bytes=4 << 30,
        memory_bytes=1 << 30,
        disk_bytes=1,
        disk_free_bytes=None,
        backup_bytes=None,
        session_seconds=None,
        measure_seconds=0.0,
        has_smaller_pieces=False,
    )
    assert phrase("deployment.run_will_stop_there") in shown.problems()[0]


@pytest.mark.parametrize(
    ("settings", "done", "evaluations", "saves"),
    [
        ({"validation_interval": None, "checkpoint_interval": None}, 0, 2, 2),
        ({"validation_interval": 1, "checkpoint_interval": 1}, 0, 4, 4),  # at 4, 8 and 10
        ({"validation_frequency": 5, "validation_interval": None}, 6, 1, 4),
    ],
)
def test_evaluations_and_saves_are_counted(
    settings: dict[str, Any], done: int, evaluations: int, saves: int
) -> None:
    values = {"checkpoint_interval": 1, "checkpoint_seconds": None, **settings}
    config = DeploymentConfig(training=values)
    state = SimpleNamespace(global_step=done, max_steps=10)
    trainer = SimpleNamespace(state=state, args=SimpleNamespace(eval_on_start=done == 0))
    training: Any = SimpleNamespace(config=config, data=SimpleNamespace(held_out=[1]))
    assert evaluations_left(training, trainer, 4) == evaluations
    assert saves_left(config, 10, 4, 60.0) == saves
    training.data.held_out = []
    assert evaluations_left(training, trainer, 4) == 0
