"""A whole run, its files, its end by a signal, and going on: what people start with one command."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.errors import CheckpointError
from infrastructure.deployment import deploy_training
from infrastructure.deployment.commands import resume
from infrastructure.deployment.deploy_training import TrainingDeployment, use_sample_data
from infrastructure.evaluation.evaluate import evaluate_model
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.state import TrainingState


@pytest.fixture
def data_file(tmp_path: Path) -> Path:
    rows = [{"question": f"Reverse {n}", "answer": str(n)[::-1]} for n in range(100, 140)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n{broken\n")
    return path


@pytest.fixture
def configure(
    saved_llama: Path, data_file: Path, tmp_path: Path
) -> Callable[..., DeploymentConfig]:
    def make(**training: Any) -> DeploymentConfig:
        settings = {"batch_size": 4, "num_epochs": 2, "validation_prompts": 4, "warmup_steps": 1}
        return DeploymentConfig(
            model={"name": str(saved_llama)},
            data={"path": str(data_file), "max_length": 64, "num_workers": 0},
            training={**settings, **training},
            cache={"directory": str(tmp_path / "cache")},
            output_dir=str(tmp_path / "runs"),
            device="cpu",
        )

    return make


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(next((run / "final").glob("*.safetensors")))


def deploy(config: DeploymentConfig) -> tuple[Path, list[str]]:
    said: list[str] = []
    summary = TrainingDeployment(config, say=said.append).run()
    return Path(summary["paths"]["run"]), said


def test_a_run_leaves_everything_behind(configure: Callable[..., DeploymentConfig]) -> None:
    run, said = deploy(configure())
    names = {path.name for path in run.iterdir()}
    assert names >= {
        *("run.json", "summary.json", "metrics.jsonl", "metrics.csv", "tensorboard"),
        *("report.html", "checkpoints", "final", "tokenizer", "before.json", "quarantine.jsonl"),
    }
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["after"]["eval_loss"] < summary["before"]["eval_loss"]
    record = json.loads((run / "run.json").read_text())
    assert record["config"]["training.batch_size"]["value"] == 4
    assert record["versions"]["torch"] == torch.__version__
    (bad_row,) = (run / "quarantine.jsonl").read_text().splitlines()
    assert json.loads(bad_row)["line"] == 41
    text = "\n".join(said)
    assert "held-out loss" in text
    assert "report.html" in text


class StopAt(Observer):
    """Sends this process a signal at one step, as a person or a cluster would."""

    def __init__(self, step: int, number: signal.Signals) -> None:
        self.step, self.number = step, number

    def step_start(self, state: TrainingState) -> None:
        if state.step == self.step:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_goes_on_to_the_same_bits(
    configure: Callable[..., DeploymentConfig],
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    restore_logging: None,
) -> None:
    whole, _ = deploy(configure())
    observers = deploy_training.TrainingDeployment._observers
    with monkeypatch.context() as patch:
        patch.setattr(
            TrainingDeployment,
            "_observers",
            lambda self, run: [*observers(self, run), StopAt(5, number)],
        )
        stopped, said = deploy(configure())
    assert json.loads((stopped / "summary.json").read_text())["status"] == "stopped"
    assert not (stopped / "final").exists()
    assert any("temper train-resume" in line for line in said)
    assert resume(str(stopped), str(stopped.parent)) == 0
    assert json.loads((stopped / "summary.json").read_text())["status"] == "finished"
    first, second = weights(whole), weights(stopped)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert losses(whole) == losses(stopped)


def losses(run: Path) -> list[tuple[int, float]]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [(r["step"], r["loss"]) for r in records if "loss" in r]


def test_a_run_does_not_go_on_with_other_data(
    configure: Callable[..., DeploymentConfig], data_file: Path
) -> None:
    run, _ = deploy(configure(max_steps=2, num_epochs=1))
    data_file.write_text(data_file.read_text().replace("Reverse 100", "Reverse 999"))
    with pytest.raises(CheckpointError, match="has changed since it began"):
        resume(str(run), str(run.parent))


def test_a_failed_run_says_why(
    configure: Callable[..., DeploymentConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, run: Any) -> list[Observer]:
        class Fails(Observer):
            def step_end(self, state: TrainingState) -> None:
                raise OSError("the disk went away")

        return [Fails()]

    monkeypatch.setattr(TrainingDeployment, "_observers", fail)
    config = configure()
    with pytest.raises(OSError, match="disk went away"):
        deploy(config)
    (run,) = Path(config.output_dir).iterdir()
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["error"]) == ("failed", "OSError: the disk went away")
    assert "the disk went away" in (run / "report.html").read_text()


def test_early_stopping_ends_a_run_that_does_not_improve(
    configure: Callable[..., DeploymentConfig],
) -> None:
    config = configure(num_epochs=9, early_stopping_patience=1, learning_rate=1e-9)
    config.training.early_stopping_min_delta = 0.5
    run, _ = deploy(config)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["epochs"] < 9
    assert "has not improved" in summary["reason"]


def test_the_saved_model_has_the_loss_that_the_run_ended_with(
    configure: Callable[..., DeploymentConfig], data_file: Path, tmp_path: Path
) -> None:
    held_out = tmp_path / "test.jsonl"
    held_out.write_text("\n".join(data_file.read_text().splitlines()[:8]))
    config = configure(max_steps=3, num_epochs=1)
    config.data.eval_path = str(held_out)
    run, _ = deploy(config)
    after = json.loads((run / "summary.json").read_text())["after"]["eval_loss"]
    again = configure()
    again.model.name, again.data.path = str(run / "final"), str(held_out)
    lines = evaluate_model(again)
    (written,) = (tmp_path / "runs" / "evaluations").iterdir()
    assert json.loads(written.read_text())["metrics"]["eval_loss"] == pytest.approx(after, rel=1e-6)
    assert any("eval_loss" in line for line in lines)


def test_the_embedded_model_has_sample_data() -> None:
    config = DeploymentConfig()
    use_sample_data(config)
    assert config.data.path is not None
    assert Path(config.data.path).is_file()
    assert config.data.task_column == "task"
