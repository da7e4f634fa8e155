"""How a call of `Trainer.train` begins as a training of Temper, and how it ends."""

import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from infrastructure.core.errors import CheckpointError
from infrastructure.monitoring.drawing.metrics_file import read_metrics
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Event, Observer
from infrastructure.training.hf_bridge import TemperCallback
from infrastructure.training.hf_bridge.bridged_training import ResumeRequest, begin_training
from infrastructure.training.hf_bridge.trainer_run import TrainerRun
from infrastructure.training.hf_bridge.trainer_state import TrainerParts
from tests.training.hf_bridge.test_callback import At, run_of, steps_of, summary_of
from tests.training.hf_bridge.tiny_trainer import settings, train, trainer_of


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"world_size": 2}, "one process, and there are 2"),
        ({"deepspeed": "config.json"}, "with deepspeed or fsdp"),
        ({"fsdp": ["full_shard"]}, "with deepspeed or fsdp"),
    ],
)
def test_what_lies_in_several_processes_is_refused_before_anything_is_written(
    tmp_path: Path, changed: dict[str, Any], sentence: str
) -> None:
    run = TrainerRun("tiny", settings(tmp_path), print)
    args: Any = SimpleNamespace(**{"world_size": 1, "deepspeed": None, "fsdp": [], **changed})
    model, nothing = torch.nn.Linear(1, 1), None
    parts = TrainerParts(args, nothing, model, nothing, nothing)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=sentence):
        begin_training(run, parts, None, None, None, [], ResumeRequest(None, frozenset()))
    assert not (tmp_path / "runs").exists()


class SyncRefModelCallback(TrainerCallback):  # type: ignore[misc]
    """By its name one of TRL's that moves weights which no version holds."""


def test_weights_that_no_version_holds_are_named_first_and_refused_later(tmp_path: Path) -> None:
    lines: list[str] = []
    for hooks in ([At(Event.AFTER_BACKWARD, 1, stop)], []):
        trainer = trainer_of(tmp_path, max_steps=4)
        trainer.add_callback(SyncRefModelCallback())
        callback = TemperCallback("tiny", settings(tmp_path), say=lines.append, hooks=hooks)
        trainer.add_callback(callback)
        resumed = callback.resume_from()
        if resumed is None:
            trainer.train()
            assert any("SyncRefModelCallback" in line for line in lines)
            assert steps_of(tmp_path)[-1] == 2
        else:
            with pytest.raises(CheckpointError, match="SyncRefModelCallback"):
                trainer.train(resume_from_checkpoint=resumed)
            assert trainer.state.global_step == 2


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_the_same_name_in_another_training_is_refused_by_what_differs(tmp_path: Path) -> None:
    train(tmp_path, max_steps=2)
    with pytest.raises(CheckpointError, match="weight_decay"):
        train(tmp_path, max_steps=2, weight_decay=0.3)
    assert steps_of(tmp_path)[-1] == 2


def test_a_run_that_was_changed_is_not_what_its_last_arguments_train(tmp_path: Path) -> None:
    train(tmp_path, max_steps=2)
    train(tmp_path, max_steps=4, accept=["max_steps"])
    refusal = r"max_steps was 2 until step 2, and is 4 since.*accept=\['max_steps'\]"
    with pytest.raises(CheckpointError, match=refusal):
        train(tmp_path, max_steps=4)
    trainer, _, _ = train(tmp_path, max_steps=4, accept=["max_steps"])
    assert trainer.state.global_step == 4


def test_hooks_see_the_beginning_and_the_end_in_order(tmp_path: Path) -> None:
    seen: list[tuple[str, int, str | None]] = []

    class Noting(Observer):
        pass

    noting = Noting()
    for event in (Event.TRAIN_START, Event.PHASE_START, Event.PHASE_END, Event.TRAIN_END):

        def note(state: TrainingState, name: str = event.value) -> None:
            status = json.loads((run_of(tmp_path) / "summary.json").read_text())["status"]
            seen.append((name, state.step, status))

        setattr(noting, event.value, note)
    train(tmp_path, max_steps=3, hooks=[noting])
    assert seen == [
        ("train_start", 0, "running"),
        ("phase_start", 0, "running"),
        ("phase_end", 3, "running"),
        ("train_end", 3, "finished"),
    ]
    seen.clear()
    train(tmp_path / "stopped", max_steps=3, hooks=[At(Event.AFTER_BACKWARD, 0, stop)])
    assert summary_of(tmp_path / "stopped")["status"] == "stopped"
    assert not (run_of(tmp_path / "stopped") / "final").exists()


def test_what_failed_is_recorded_with_its_step_and_the_run_is_free(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("broken here")

    trainer = trainer_of(tmp_path, max_steps=4)
    callback = TemperCallback(
        "tiny", settings(tmp_path), hooks=[At(Event.AFTER_BACKWARD, 2, fail)], say=lambda line: None
    )
    trainer.add_callback(callback)
    with pytest.raises(RuntimeError) as raised:
        trainer.train(resume_from_checkpoint=callback.resume_from())
    callback.ended_by(raised.value)
    summary = summary_of(tmp_path)
    assert (summary["status"], summary["steps"], summary["total_steps"]) == ("failed", 2, 4)
    assert "broken here" in summary["error"]
    errors = read_metrics(run_of(tmp_path) / "logs" / "errors" / "errors.jsonl")
    assert [error["step"] for error in errors] == [2]
    with ExitStack() as stack:
        TrainerRun("tiny", settings(tmp_path), print).enter(stack)


def test_the_record_and_the_summary_are_of_what_was_trained(tmp_path: Path) -> None:
    _, _, lines = train(tmp_path, max_steps=3, eval_strategy="steps", eval_steps=3)
    record = json.loads((run_of(tmp_path) / "run.json").read_text())
    assert record["data"]["num_examples"] == 22
    summary = summary_of(tmp_path)
    assert set(summary["after"]) == {"eval_loss"}
    assert (summary["steps"], summary["total_steps"]) == (3, 3)
    assert 0 < summary["seconds"] < 120
    assert summary["loss"] == read_metrics(run_of(tmp_path) / "metrics.jsonl")[-2]["loss"]
    assert any(line.startswith(f"Run tiny in {run_of(tmp_path)}: ") for line in lines)
    assert any(f"its model and report.html lie in {run_of(tmp_path)}" in line for line in lines)
