"""Real Trainers with the callback: undisturbed, killed, stopped, broken off, and going on."""

import ast
import json
import math
import os
import pty
import queue
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers.trainer_callback import PrinterCallback, TrainerCallback

from infrastructure.backup.format.file_operations import FileOperations
from infrastructure.backup.format.objects import SLACK_BYTES
from infrastructure.backup.state.random_state import capture_random
from infrastructure.commands.main import main
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.errors import (
    CheckpointError,
    CopyNotConfirmedError,
    RunStoppedError,
    StorageError,
    TrainingDivergedError,
)
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.messages import phrase
from infrastructure.core.stop_signals import StopSignal, reason_of
from infrastructure.monitoring.drawing.metrics_file import read_metrics
from infrastructure.monitoring.logging_config import OUTPUT_FILE
from infrastructure.monitoring.records.run_owner import announce_stop
from infrastructure.monitoring.records.run_reader import config_of, read_small_files
from infrastructure.run.checkpoint_paths import by_step
from infrastructure.run.directory import find_run
from infrastructure.run.find import newest_of_this_purpose
from infrastructure.training.checkpoints.checkpoint_manager import (
    CheckpointManager,
    load_checkpoint,
)
from infrastructure.training.checkpoints.snapshot import Snapshot
from infrastructure.training.core.state import StopReason, TrainingState
from infrastructure.training.extensions.extension_hooks import Event, Extension, Observer
from infrastructure.training.hf_bridge import TemperCallback, callback
from infrastructure.training.hf_bridge.bridged_training import BridgedTraining
from infrastructure.training.hf_bridge.callback import (
    FOLDER,
    exception_of_stop,
    leave_training,
    random_states,
    write_checkpoint_folder,
)
from infrastructure.training.hf_bridge.finished_training import FinishedTraining
from tests.faults.kill_storm import in_child
from tests.slow import slow, slow_but
from tests.training.hf_bridge.tiny_trainer import (
    settings,
    stop_passes,
    tiny_lora,
    tiny_model,
    train,
    trainer_of,
    weights,
)

EVALUATED = {"eval_strategy": "steps", "eval_steps": 3}
NUM_STEPS = 12
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WTE = "transformer.wte.weight"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., torch.Tensor]:
    """The weights that a Trainer without a callback comes to."""
    known: dict[str, torch.Tensor] = {}

    def weights_of(make: Callable[[], Any] = tiny_model, **options: Any) -> torch.Tensor:
        key = f"{make.__name__} {options}"
        if key not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            trainer = trainer_of(folder, make(), **{"save_strategy": "no", **options})
            trainer.train()
            known[key] = weights(trainer.model)
        return known[key]

    return weights_of


class At(Observer):
    """Does something at an event of a step."""

    def __init__(self, event: Event, step: int, what: Callable[[], None]) -> None:
        def act(state: TrainingState) -> None:
            if state.step == step:
                what()

        setattr(self, event.value, act)


def kill_oneself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_of(folder: Path) -> Path:
    return folder / "runs" / "tiny"


def summary_of(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run_of(folder) / "summary.json").read_text())
    return summary


def resuming_from(step: int) -> str:
    return f"trainer.resuming(run=tiny, step={step},"


def steps_of(folder: Path) -> list[int]:
    return sorted(by_step(CheckpointManager(run_of(folder) / "checkpoints").store))


def test_the_callback_changes_no_weight_and_takes_the_place_of_the_trainers_folders(
    tmp_path: Path, undisturbed: Callable[..., torch.Tensor]
) -> None:
    trainer, _, lines = train(tmp_path, **EVALUATED)
    assert torch.equal(weights(trainer.model), undisturbed(**EVALUATED))
    assert list((tmp_path / "of-the-trainer").iterdir()) == []
    records = read_metrics(run_of(tmp_path) / "metrics.jsonl")
    of_steps = [r for r in records if "kind" not in r]
    assert [r["step"] for r in of_steps] == list(range(1, NUM_STEPS + 1))
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert [r["loss"] for r in of_steps] == logged
    evaluated = [r for r in records if r.get("kind") == "evaluation"]
    assert [r["step"] for r in evaluated] == [3, 6, 9, 12]
    summary = summary_of(tmp_path)
    assert (summary["status"], summary["steps"]) == ("finished", NUM_STEPS)
    assert summary["reason"] is None
    assert "data-chart=" in (run_of(tmp_path) / "report.html").read_text()
    assert any("trainer.run_ended(run=tiny, status=finished, step=12," in line for line in lines)


@pytest.mark.parametrize(
    ("make", "event", "step"),
    [
        (tiny_model, Event.STEP_START, 4),
        pytest.param(tiny_model, Event.EVAL_END, 9, marks=slow),
        (tiny_lora, Event.EPOCH_START, 6),
        pytest.param(tiny_model, Event.AFTER_BACKWARD, 7, marks=slow),
        pytest.param(tiny_model, Event.EPOCH_START, 6, marks=slow),
        pytest.param(tiny_model, Event.EPOCH_END, 12, marks=slow),
        pytest.param(tiny_model, Event.TRAIN_END, 12, marks=slow),
        pytest.param(tiny_lora, Event.STEP_START, 5, marks=slow),
    ],
)
def test_a_killed_training_goes_on_to_the_very_same_weights(
    tmp_path: Path,
    undisturbed: Callable[..., torch.Tensor],
    make: Callable[[], Any],
    event: Event,
    step: int,
) -> None:
    hooks = [At(event, step, kill_oneself)]
    child = in_child(lambda: train(tmp_path, make(), hooks=hooks, **EVALUATED) and None)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    saved = steps_of(tmp_path)
    assert saved, "nothing was saved before the kill"
    trainer, _, lines = train(tmp_path, make(), **EVALUATED)
    is_over = event is Event.TRAIN_END  # the model is saved, so nothing is trained
    expected = "trainer.run_already_finished(run=tiny)" if is_over else resuming_from(saved[-1])
    assert any(expected in line for line in lines)
    assert torch.equal(weights(trainer.model), undisturbed(make, **EVALUATED))
    records = read_metrics(run_of(tmp_path) / "metrics.jsonl")
    of_steps = [r["step"] for r in records if "kind" not in r]
    assert of_steps == list(range(1, NUM_STEPS + 1))
    assert [r["step"] for r in records if r.get("kind") == "evaluation"] == [3, 6, 9, 12]


def test_what_is_logged_of_an_evaluation_is_recorded(tmp_path: Path) -> None:
    """TRL before 1.0 puts its own measures of held-out rows into its log, and nowhere else."""
    trainer = trainer_of(tmp_path, max_steps=8, eval_strategy="epoch")
    log = trainer.log

    def log_more(logs: dict[str, float], *given: Any) -> None:
        more = {"eval_rewards/margins": 0.5} if "eval_loss" in logs else {"rewards/margins": 0.25}
        log({**logs, **more}, *given)

    trainer.log = log_more
    callback = TemperCallback("tiny", settings(tmp_path))
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=callback.resume_from())
    records = read_metrics(run_of(tmp_path) / "metrics.jsonl")
    measured = [record for record in records if record.get("kind") == "evaluation"]
    assert measured
    assert all(record["eval_rewards/margins"] == 0.5 for record in measured)
    assert all("rewards/margins" not in record for record in measured)


def test_tokens_that_were_counted_before_the_log_have_a_rate(tmp_path: Path) -> None:
    """TRL's trainers that generate count their tokens in the middle of a step."""
    trainer = trainer_of(tmp_path, max_steps=3)
    log, step = trainer.log, trainer.training_step

    def count_and_step(*given: Any, **named: Any) -> Any:
        trainer.state.num_input_tokens_seen += 50
        return step(*given, **named)

    def log_more(logs: dict[str, float], *given: Any) -> None:
        more = {"num_tokens": float(trainer.state.num_input_tokens_seen)} if "loss" in logs else {}
        log({**logs, **more}, *given)

    trainer.log, trainer.training_step = log_more, count_and_step
    trainer.add_callback(TemperCallback("tiny", settings(tmp_path)))
    trainer.train()
    of_steps = read_metrics(run_of(tmp_path) / "metrics.jsonl")
    assert [record["tokens"] for record in of_steps] == [100.0, 200.0, 300.0]
    for record in of_steps:
        assert record["tokens_per_second"] == pytest.approx(100 / record["seconds"])


def test_what_was_never_logged_is_no_number_of_the_summary(tmp_path: Path) -> None:
    train(tmp_path, max_steps=3, logging_steps=500)
    summary = summary_of(tmp_path)
    assert (summary["status"], summary["steps"]) == ("finished", 3)
    assert not {"loss", "tokens"} & summary.keys()
    assert "monitoring.ended_before_first_log" in (run_of(tmp_path) / "report.html").read_text()


# At the end of an epoch; in its middle below, from a place.
@pytest.mark.parametrize("max_steps", slow_but([6], [8, 6]))
def test_running_it_again_when_it_is_finished_does_nothing(
    tmp_path: Path, undisturbed: Callable[..., torch.Tensor], max_steps: int
) -> None:
    from transformers import TrainerCallback

    class Watcher(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            seen.append("a step")

        def on_log(self, *_: Any, logs: Any = None, **__: Any) -> None:
            seen.append(logs)

        def on_evaluate(self, *_: Any, **__: Any) -> None:
            seen.append("an evaluation")

    seen: list[Any] = []
    options = {"max_steps": max_steps, "eval_strategy": "epoch"}
    outputs = []
    for _ in range(3):
        seen.clear()
        trainer = trainer_of(tmp_path, **options)
        trainer.add_callback(Watcher)
        callback = TemperCallback("tiny", settings(tmp_path), say=(lines := []).append)
        trainer.add_callback(callback)
        outputs.append(trainer.train(resume_from_checkpoint=callback.resume_from()))
        metrics = (run_of(tmp_path) / "metrics.jsonl").read_bytes()
    assert seen == []
    assert any("trainer.run_already_finished" in line for line in lines)
    first, *again = outputs
    assert first.metrics["train_loss"] > 0
    for output in again:
        assert output.global_step == first.global_step == max_steps
        assert output.metrics == first.metrics, "what the training came to, and nothing false"
        assert output.training_loss == pytest.approx(first.training_loss)
    assert torch.equal(weights(trainer.model), undisturbed(**options))
    assert (run_of(tmp_path) / "metrics.jsonl").read_bytes() == metrics
    trainer.evaluate()
    assert "an evaluation" in seen, "afterwards it is a Trainer as any other"


def test_an_error_in_a_call_that_trains_nothing_leaves_the_run_finished(tmp_path: Path) -> None:
    from transformers import TrainerCallback

    class Broken(TrainerCallback):  # type: ignore[misc]
        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("broken")

    train(tmp_path, max_steps=1)
    before = summary_of(tmp_path)
    trainer = trainer_of(tmp_path, max_steps=1)
    callback = TemperCallback("tiny", settings(tmp_path))
    trainer.add_callback(callback)
    trainer.add_callback(Broken)
    with pytest.raises(RuntimeError, match="broken"):
        trainer.train(resume_from_checkpoint=callback.resume_from())
    assert callback.resume_from() is not None  # which waits until its end is noticed
    assert (before["status"], summary_of(tmp_path)) == ("finished", before)


def test_what_is_not_confirmed_at_the_end_is_reported_and_completed_by_the_same_lines(
    tmp_path: Path,
) -> None:
    place, options = tmp_path / "mount", {"max_steps": 2}
    place.mkdir()

    def config(seconds: float) -> DeploymentConfig:
        backup = {"place": str(place), "finish_seconds": seconds, "emergency_seconds": seconds}
        return settings(tmp_path, backup=backup)

    def go_away() -> None:
        place.rename(tmp_path / "away")
        place.mkdir()

    leave = At(Event.STEP_END, 2, go_away)
    with pytest.raises(
        CopyNotConfirmedError, match=r"backup\.finished_run_not_confirmed\(run=tiny"
    ) as raised:
        train(tmp_path, config=config(4.0), hooks=[leave], **options)
    assert raised.value.code == ExitCode.NOT_CONFIRMED
    assert summary_of(tmp_path)["status"] == "finished"
    callback = TemperCallback("tiny", config(1.0), say=(lines := []).append)  # type: ignore[var-annotated]
    with pytest.raises(CopyNotConfirmedError):  # it is away still
        callback.resume_from()
    assert [line.partition("(")[0] for line in lines] == ["backup.finished_run_not_confirmed"]
    assert list(place.iterdir()) == []
    place.rmdir()
    (tmp_path / "away").rename(place)
    train(tmp_path, config=config(60.0), **options)
    there = place / "tiny/final/model.safetensors"
    assert there.read_bytes() == (run_of(tmp_path) / "final/model.safetensors").read_bytes()
    assert summary_of(tmp_path)["backup"]["published"] == f"{place}/tiny/final"
    (place / "tiny/final/SHA256SUMS").unlink()
    assert main(["backup", "create", "tiny", "--output", str(tmp_path / "runs")]) == 0
    assert (place / "tiny/final/SHA256SUMS").is_file()
    shutil.rmtree(run_of(tmp_path))  # and the place alone gives it back
    trainer, _, lines = train(tmp_path, config=config(60.0), **options)
    assert any("trainer.run_already_finished" in line for line in lines)
    assert not any("trainer.resuming" in line for line in lines)
    assert trainer.state.global_step == 2
    assert there.read_bytes() == (run_of(tmp_path) / "final/model.safetensors").read_bytes()


def test_a_beginning_names_where_there_was_nothing(tmp_path: Path) -> None:
    place, lines = tmp_path / "mount", list[str]()
    config = settings(tmp_path, backup={"place": str(place)})
    for code in ("nor_at_new_destination", "nor_at_destination"):
        assert TemperCallback("tiny", config, say=lines.append).resume_from() is None
        there = f"trainer.{code}(destination={place})"
        assert lines.pop().endswith(f"folder={tmp_path / 'runs'}, there={there})")
    assert lines == []


def test_a_place_that_is_not_there_is_found_before_the_first_step(tmp_path: Path) -> None:
    nowhere = {"place": str(tmp_path / "not-mounted/temper"), "finish_seconds": 1.0}
    with pytest.raises(StorageError, match=r"not-mounted"):
        train(tmp_path, config=settings(tmp_path, backup=nowhere), max_steps=1)
    assert not (run_of(tmp_path) / "run.json").exists()
    allowed = settings(tmp_path, backup={**nowhere, "allow_missing_place": True})
    with pytest.raises(CopyNotConfirmedError):
        train(tmp_path, config=allowed, max_steps=1)
    assert summary_of(tmp_path)["status"] == "finished"


# SIGTERM and SIGHUP stop other trainings below.
@pytest.mark.parametrize("number", slow_but([signal.SIGINT], list(STOP_SIGNALS)))
def test_a_signal_saves_and_stops_after_the_step(
    tmp_path: Path, undisturbed: Callable[..., torch.Tensor], number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    hooks = [At(Event.AFTER_BACKWARD, 3, lambda: os.kill(os.getpid(), number))]
    trainer, _, lines = train(tmp_path, hooks=hooks, save_strategy="no")
    assert trainer.state.global_step == 4
    assert steps_of(tmp_path)[-1] == 4
    assert summary_of(tmp_path)["status"] == "stopped"
    again = "status=stopped, step=4, more=trainer.run_again_to_resume(how="
    assert any(f"trainer.run_ended(run=tiny, {again}" in line for line in lines)
    assert signal.getsignal(number) == before
    again, _, _ = train(tmp_path, save_strategy="no")
    assert torch.equal(weights(again.model), undisturbed())
    assert summary_of(tmp_path)["status"] == "finished"


@pytest.mark.parametrize("bar", [True, False])
def test_a_terminal_that_is_closed_ends_no_training(
    tmp_path: Path,
    undisturbed: Callable[..., torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
    bar: bool,
) -> None:
    """Whether the Trainer draws a bar or prints its numbers, beside what is said here."""
    from transformers.trainer_callback import PrinterCallback

    master, slave = pty.openpty()
    close = At(Event.AFTER_BACKWARD, 2, lambda: os.close(master))
    trainer = trainer_of(tmp_path, disable_tqdm=not bar)
    trainer.add_callback(TemperCallback("tiny", settings(tmp_path), hooks=[close]))
    if not bar:
        trainer.add_callback(PrinterCallback)
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", terminal)
        trainer.train()
        assert (sys.stdout, sys.stderr) == (terminal, terminal)
        monkeypatch.undo()
    assert trainer.state.global_step == NUM_STEPS
    assert torch.equal(weights(trainer.model), undisturbed())
    assert "finished" in (run_of(tmp_path) / OUTPUT_FILE).read_text()


def test_an_error_is_reported_and_the_same_lines_go_on_at_once(
    tmp_path: Path, undisturbed: Callable[..., torch.Tensor]
) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA out of memory, says this test")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(RuntimeError, match="says this test"):
        train(tmp_path, hooks=[At(Event.AFTER_LOSS, 5, fail)])
    trainer, _, lines = train(tmp_path)
    assert any(resuming_from(5) in line for line in lines)
    assert torch.equal(weights(trainer.model), undisturbed())
    errors = read_metrics(run_of(tmp_path) / "logs" / "errors" / "errors.jsonl")
    assert [e["action"] for e in errors] == ["training.run_stopped()"]
    assert signal.getsignal(signal.SIGINT) == before


def test_a_signal_after_an_error_reaches_whom_it_reached_before(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("broken")

    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        with pytest.raises(RuntimeError, match="broken"):
            train(tmp_path, hooks=[At(Event.STEP_START, 2, fail)])
        os.kill(os.getpid(), signal.SIGTERM)
        assert received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


class EndsAt(TrainerCallback):  # type: ignore[misc]
    """A Trainer's own callback that ends the training early, as early stopping does."""

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        control.should_training_stop = state.global_step == 4


def test_an_end_before_the_last_step_has_its_reason(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    trainer.add_callback(EndsAt)
    callback = TemperCallback("tiny", settings(tmp_path), say=lambda line: None)
    trainer.add_callback(callback)
    trainer.train()
    summary = json.loads(callback.run.files.summary_file.read_text())
    ended = (summary["status"], summary["steps"], summary["reason"])
    assert ended == ("finished", 4, "trainer.ended_early()")
    versions = json.loads(callback.run.files.run_file.read_text())["versions"]
    assert {"torch", "transformers", "trl", "accelerate"} <= {*versions}


def test_the_last_log_that_is_shown_is_of_the_whole_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, hooks=[InterruptedAfter(4)])
    trainer = trainer_of(tmp_path)
    trainer.add_callback(PrinterCallback)
    callback = TemperCallback("tiny", settings(tmp_path), say=lambda line: None)
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=callback.resume_from())
    lines = capsys.readouterr().out.splitlines()
    shown = [ast.literal_eval(line) for line in lines if line.startswith("{'")]
    [last] = [entry for entry in trainer.state.log_history if "train_runtime" in entry]
    [printed] = [entry for entry in shown if "train_runtime" in entry]
    assert float(printed["train_runtime"]) == pytest.approx(last["train_runtime"], rel=1e-3)


def test_another_machine_goes_on_from_the_place(
    tmp_path: Path, undisturbed: Callable[..., torch.Tensor]
) -> None:
    here, there, place = tmp_path / "here", tmp_path / "there", tmp_path / "place"
    backup = {"place": str(place), "finish_seconds": 120, "emergency_seconds": 120}
    stop = At(Event.AFTER_BACKWARD, 4, lambda: os.kill(os.getpid(), signal.SIGTERM))
    train(here, config=settings(here, backup=backup), hooks=[stop])
    assert (place / "tiny").is_dir()
    shutil.rmtree(here)
    trainer, _, lines = train(there, config=settings(there, backup=backup))
    assert any(f"trainer.run_restored(name=tiny, destination={place}" in line for line in lines)
    assert any(line.endswith(f", copies=trainer.copies_go_to(place={place}))") for line in lines)
    assert not any("nobody copies" in line for line in lines)
    assert torch.equal(weights(trainer.model), undisturbed())
    records = read_metrics(run_of(there) / "metrics.jsonl")
    assert [r["step"] for r in records] == list(range(1, NUM_STEPS + 1))
    record = json.loads((run_of(there) / "checkpoints" / "backup.json").read_text())
    assert record["confirmed_step"] == NUM_STEPS


def test_a_folder_for_backups_is_shown_with_its_full_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = settings(tmp_path, backup={"place": "backup", "finish_seconds": 120})
    _, _, lines = train(tmp_path, config=config, max_steps=1)
    place = f"copies=trainer.copies_go_to(place={tmp_path / 'backup'}))"
    assert any(line.endswith(place) for line in lines)


def test_a_disk_without_room_for_the_checkpoints_is_found_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"place": str(tmp_path / "backup"), "finish_seconds": 120}
    _, _, lines = train(tmp_path, config=settings(tmp_path, backup=place), max_steps=1)
    assert any("backup.destination_on_same_disk(" in line for line in lines)
    weight_bytes = sum(p.numel() * p.element_size() for p in tiny_model().parameters())
    free = SLACK_BYTES + weight_bytes - 1
    monkeypatch.setattr(FileOperations, "free_bytes", lambda *_: free)
    with pytest.raises(StorageError):
        train(tmp_path / "full", max_steps=1)
    assert not (run_of(tmp_path / "full") / "run.json").exists()


def test_a_plain_trainer_goes_on_from_the_folder_too(
    tmp_path: Path, undisturbed: Callable[..., torch.Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    for make in (tiny_model, tiny_lora):
        folder = tmp_path / make.__name__
        stop = At(Event.AFTER_BACKWARD, 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
        _, callback, _ = train(folder, make(), hooks=[stop])
        resumed = callback.resume_from()
        plain = trainer_of(folder / "plain", make(), save_strategy="no")
        plain.train(resume_from_checkpoint=resumed)
        assert torch.equal(weights(plain.model), undisturbed(make))
    assert "missing keys" not in caplog.text


def test_what_changes_the_result_is_refused_by_name_until_it_is_accepted(tmp_path: Path) -> None:
    train(tmp_path, max_steps=4)
    changed = r"run\.changed_since_checkpoint\(.*max_steps.*accept=\['max_steps'\]"
    with pytest.raises(CheckpointError, match=changed):
        train(tmp_path, max_steps=6)
    with pytest.raises(
        CheckpointError, match=r"trainer\.taken_from_checkpoint.*name=learning_rate"
    ):
        train(tmp_path, max_steps=4, learning_rate=1.0)
    with pytest.raises(
        ValueError, match=r"trainer\.accept_unknown_name\(name=max_step, .*meant=max_steps"
    ):
        train(tmp_path, max_steps=6, accept=["max_step"])
    with pytest.raises(ValueError, match=r"trainer\.accept_without_effect\(name=learning_rate,"):
        train(tmp_path, max_steps=6, accept=["learning_rate"])
    another = trainer_of(tmp_path, max_steps=4, learning_rate=1.0)  # as the refusal advises
    callback = TemperCallback("another-name", settings(tmp_path), say=lambda line: None)
    another.add_callback(callback)
    assert callback.resume_from() is None
    another.train()
    trainer, _, lines = train(tmp_path, max_steps=6, accept=["max_steps"])
    assert trainer.state.global_step == 6
    assert any("max_steps: was 4, is 6" in line for line in lines)
    [entry] = json.loads((run_of(tmp_path) / "run.json").read_text())["history"]
    assert (entry["step"], [one["name"] for one in entry["changes"]]) == (4, ["max_steps"])
    assert "Changed during the run" in (run_of(tmp_path) / "report.html").read_text()


def test_other_weights_under_a_lora_are_noticed(tmp_path: Path) -> None:
    train(tmp_path, tiny_lora(), max_steps=2)
    other = tiny_lora()
    with torch.no_grad():
        other.base_model.model.transformer.wte.weight[0, 0] += 1e-3
    with pytest.raises(CheckpointError, match="base_model"):
        train(tmp_path, other, max_steps=2)


class Weighty(Extension):
    """One's own that would add weights."""

    adds_weights = True

    def __init__(self, parts: object) -> None: ...


@pytest.mark.parametrize("name", ["memory", "multimodal", f"{__name__}:Weighty", "quantum"])
def test_extensions_that_a_trainer_cannot_carry_out_are_refused(tmp_path: Path, name: str) -> None:
    config = settings(tmp_path, training={"enabled_extensions": [name]})
    refusal = rf"trainer\.added_weights_not_saved\(name={name.partition(':')[2] or name}\)"
    if name in ("multimodal", "quantum"):
        refusal = r"trainer\.extension_needs_own_loop"
    with pytest.raises(ValueError, match=refusal):
        train(tmp_path, config=config)


def test_training_anew_over_an_old_training_is_refused(tmp_path: Path) -> None:
    train(tmp_path, max_steps=2)
    trainer = trainer_of(tmp_path, max_steps=2)
    trainer.add_callback(TemperCallback("tiny", settings(tmp_path)))
    with pytest.raises(ValueError, match=r"trainer\.run_already_trained"):
        trainer.train()
    late = TemperCallback("tiny", settings(tmp_path))
    trainer = trainer_of(tmp_path, max_steps=2)
    trainer.add_callback(late)
    late.resume_from()
    with pytest.raises(ValueError, match=r"trainer\.starts_at_wrong_step.*saved_step=2.*step=0"):
        trainer.train()


def test_a_trainer_that_tries_smaller_batches_begins_with_the_weights_it_began_with(
    tmp_path: Path,
) -> None:
    class Full(Observer):
        def after_backward(self, state: TrainingState) -> None:
            if state.step == 3 and len(state.batch) > 3:
                raise RuntimeError("CUDA out of memory.")

    options = {"per_device_train_batch_size": 4, "max_steps": 6, "gradient_accumulation_steps": 1}
    options["save_steps"] = 2
    smaller, _, _ = train(tmp_path / "smaller", **{**options, "per_device_train_batch_size": 3})
    trainer, _, lines = train(tmp_path, hooks=[Full()], auto_find_batch_size=True, **options)
    assert any(resuming_from(0) in line for line in lines)
    assert torch.equal(weights(trainer.model), weights(smaller.model))
    assert summary_of(tmp_path)["status"] == "finished"
    options["save_steps"] = 1  # so that the first version is gone by then
    with pytest.raises(ValueError, match=r"trainer\.start_checkpoint_rotated"):
        train(tmp_path / "late", hooks=[Full()], auto_find_batch_size=True, **options)


def test_temper_stop_is_not_taken_for_another_signal(tmp_path: Path) -> None:
    def announced() -> None:
        announce_stop(run_of(tmp_path), os.getpid())
        os.kill(os.getpid(), signal.SIGTERM)

    seen: list[StopReason | None] = []

    class Reasons(Observer):
        def train_end(self, state: TrainingState) -> None:
            seen.append(state.stop_reason)

    train(tmp_path, hooks=[At(Event.AFTER_BACKWARD, 1, announced), Reasons()])
    assert summary_of(tmp_path)["reason"] == phrase("core.stopped_by_command")
    interrupt = At(Event.AFTER_BACKWARD, 3, lambda: os.kill(os.getpid(), signal.SIGINT))
    announce_stop(run_of(tmp_path), os.getpid())  # which is for SIGTERM alone
    train(tmp_path, hooks=[interrupt, Reasons()])
    assert seen == [StopReason.COMMAND, StopReason.SIGNAL]


def test_a_lora_of_another_shape_is_refused_before_it_is_loaded_into(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    def lora(rank: int) -> Any:
        config = LoraConfig(r=rank, target_modules=["c_attn"], fan_in_fan_out=True)
        return get_peft_model(tiny_model(), config)

    train(tmp_path, lora(2), max_steps=1)
    trainer = trainer_of(tmp_path, lora(3), max_steps=1)
    callback = TemperCallback("tiny", settings(tmp_path))
    trainer.add_callback(callback)
    with pytest.raises(CheckpointError, match=r"trainer\.shape_is_fixed.*name=lora"):
        callback.resume_from()


@pytest.mark.parametrize("is_new", [True, False])
def test_the_error_that_an_interactive_session_shows_is_the_one_that_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """A notebook keeps the last one, which may be of an earlier cell."""
    monkeypatch.setattr(sys, "last_value", ValueError("of an earlier cell"), raising=False)

    def fail() -> None:
        raise RuntimeError("of this one")

    with pytest.raises(RuntimeError) as raised:
        train(tmp_path, hooks=[At(Event.STEP_START, 1, fail)], max_steps=2)
    if is_new:
        sys.last_value = raised.value
    TemperCallback("tiny", settings(tmp_path)).resume_from()  # waits until the end is noticed
    error = summary_of(tmp_path)["error"]
    assert ("of this one" in error) is is_new
    assert "earlier" not in error


def test_a_damaged_version_is_passed_over(
    tmp_path: Path, undisturbed: Callable[..., torch.Tensor]
) -> None:
    stop = At(Event.AFTER_BACKWARD, 5, lambda: os.kill(os.getpid(), signal.SIGTERM))
    train(tmp_path, hooks=[stop])
    newest = by_step(CheckpointManager(run_of(tmp_path) / "checkpoints").store)[6]
    newest.write_text("{}")
    trainer, _, lines = train(tmp_path)
    assert any(resuming_from(5) in line for line in lines)
    assert torch.equal(weights(trainer.model), undisturbed())


def test_weights_that_are_no_numbers_stop_the_training_and_are_never_gone_on_from(
    tmp_path: Path,
) -> None:
    class Poison(Extension):
        def step_end(self, state: TrainingState) -> None:
            if state.step == 4:
                with torch.no_grad():
                    next(iter(state.model.parameters())).view(-1)[0] = float("nan")

    with pytest.raises(
        TrainingDivergedError, match=r"trainer\.weights_not_finite.*step=4.*newest=3"
    ):
        train(tmp_path, hooks=[Poison()])
    _, _, lines = train(tmp_path, accept=["extensions"])
    assert any(resuming_from(3) in line for line in lines)


def test_a_trainer_that_needs_its_own_folders_keeps_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**EVALUATED, "save_steps": 3, "load_best_model_at_end": True}
    trainer, _, lines = train(tmp_path, **options)
    logged = trainer.state.log_history
    losses = {entry["step"]: entry["eval_loss"] for entry in logged if "eval_loss" in entry}
    best = min(losses, key=lambda step: losses[step])
    assert best < NUM_STEPS
    summary = summary_of(tmp_path)
    assert (summary["final_step"], summary["after"]) == (best, {"eval_loss": losses[best]})
    assert f"run.model_of_best_step(step={best})" in lines
    assert main(["list", "--output", str(tmp_path / "runs"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["held_out_loss"] == losses[best]
    report = (run_of(tmp_path) / "report.html").read_text()
    assert f"run.model_of_best_step(step={best})" in report
    written = {path.name for path in (tmp_path / "of-the-trainer").iterdir()}
    assert {"checkpoint-3", "checkpoint-12"} <= written
    assert Path(trainer.state.best_model_checkpoint).is_dir()
    assert steps_of(tmp_path)[-1] == NUM_STEPS


def test_hooks_get_the_events_of_a_training_and_may_stop_it(tmp_path: Path) -> None:
    seen: list[str] = []

    class Recorder(Observer):
        def state_dict(self) -> dict[str, Any]:
            return {"num_seen": len(seen)}

        def load_state_dict(self, saved: dict[str, Any]) -> None:
            seen.append(f"loaded {saved['num_seen']}")

    recorder = Recorder()
    for event in Event:
        setattr(recorder, event.value, lambda state, e=event: seen.append(e.value))

    class Enough(Observer):
        def step_end(self, state: TrainingState) -> None:
            if state.step == 2:
                state.stop("two steps are enough")

    trainer, _, _ = train(tmp_path, hooks=[recorder, Enough()])
    micro = ["after_loss"] * 2
    step = ["step_start", *micro, "after_backward", "step_end"]
    saved = ["checkpoint_saved"]
    assert seen == [
        *["train_start", "phase_start", *saved, "epoch_start", *step, *saved, *step],
        *[*saved, "phase_end", "train_end"],
    ]
    assert trainer.state.global_step == 2
    assert summary_of(tmp_path)["reason"] == "two steps are enough"
    train(tmp_path, hooks=[recorder, Enough()])
    assert "loaded" not in " ".join(seen), "a finished training asks nobody"


def test_a_training_of_another_process_is_left_alone(tmp_path: Path) -> None:
    ready = tmp_path / "ready"

    def wait() -> None:
        ready.touch()
        time.sleep(60)

    child = in_child(lambda: train(tmp_path, hooks=[At(Event.STEP_START, 3, wait)]) and None)
    try:
        while not ready.exists():
            time.sleep(0.05)
        callback = TemperCallback("tiny", settings(tmp_path))
        with pytest.raises(ValueError, match=rf"run\.run_is_being_trained\(.*process {child} "):
            callback.resume_from()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert callback.resume_from() == str(run_of(tmp_path) / FOLDER)


def test_every_event_that_the_installed_transformers_has_is_known() -> None:
    from transformers import TrainerCallback

    events = {name for name in vars(TrainerCallback) if name.startswith("on_")}
    assert events == {name for name in vars(TemperCallback) if name.startswith("on_")}


def test_each_event_is_passed_on_with_what_belongs_to_it(tmp_path: Path) -> None:
    seen: list[tuple[Any, ...]] = []

    class Events:
        def __getattr__(self, name: str) -> Any:
            return lambda *given: seen.append((name, *given))

    callback = TemperCallback("tiny", settings(tmp_path))
    control, state, rows = SimpleNamespace(should_training_stop=False), object(), [1, 2]
    loader = SimpleNamespace(dataset=rows)
    for name in vars(TrainerCallback):  # before training it does nothing
        if name.startswith("on_") and name != "on_train_begin":
            getattr(callback, name)(None, state, control)
    training = object.__new__(BridgedTraining)
    training.events = Events()  # type: ignore[assignment]
    callback._training = training
    callback.on_epoch_begin(None, state, control)
    callback.on_step_begin(None, state, control)
    callback.on_substep_end(None, state, control)
    callback.on_pre_optimizer_step(None, state, control)
    callback.on_step_end(None, state, control)
    callback.on_log(None, state, control, logs={"loss": 1.0})
    callback.on_log(None, state, control)
    callback.on_evaluate(None, state, control, metrics={"eval_loss": 2.0}, eval_dataloader=loader)
    callback.on_evaluate(None, state, control)
    callback.on_save(None, state, control)
    callback.on_epoch_end(None, state, control)
    assert seen == [
        *(("epoch_begins",), ("step_begins",), ("micro_batch_done",), ("gradients_are_final",)),
        *(("step_ends", control), ("logged", {"loss": 1.0}, control), ("logged", {}, control)),
        *(("evaluated", {"eval_loss": 2.0}, control, rows), ("evaluated", {}, control, None)),
        *(("own_checkpoint_saved",), ("epoch_ends", control)),
    ]
    assert not control.should_training_stop
    callback._training = object.__new__(FinishedTraining)
    callback.on_step_begin(None, state, control)
    callback.on_epoch_begin(None, state, control)
    assert (len(seen), control.should_training_stop) == (11, True), "there is nothing to train"


def test_a_callback_is_made_of_its_configuration_and_what_may_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(tmp_path)
    monkeypatch.setattr(callback, "load_config", lambda: config)
    made = TemperCallback("tiny", accept=["seed", "data"], is_whole=True)
    assert (made.run.config, made.run.is_whole) == (config, True)
    assert made.accepted == {"seed", "data"}
    for is_whole, remedy in ((True, "start_another_run"), (False, "use_another_name")):
        with pytest.raises(ValueError, match=rf"new_run=trainer\.{remedy}\(\)"):
            TemperCallback("tiny", accept=["learning_rate"], is_whole=is_whole)
    with torch.no_grad(), pytest.raises(ValueError, match=r"training\.gradients_disabled"):
        made.resume_from()


@pytest.mark.parametrize(
    ("number", "is_announced", "message", "reason"),
    [
        (signal.SIGTERM, False, reason_of(signal.SIGTERM), StopReason.SIGNAL),
        (signal.SIGTERM, True, "core.stopped_by_command()", StopReason.COMMAND),
        (signal.SIGINT, True, reason_of(signal.SIGINT), StopReason.SIGNAL),
        (signal.SIGHUP, False, reason_of(signal.SIGHUP), StopReason.SIGNAL),
    ],
)
def test_a_signal_is_a_reason_to_stop_and_is_answered(
    tmp_path: Path, number: signal.Signals, is_announced: bool, message: str, reason: StopReason
) -> None:
    lines: queue.Queue[str] = queue.Queue()
    made = TemperCallback("tiny", settings(tmp_path), say=lines.put)
    made.run.directory.mkdir(parents=True)
    if is_announced:
        announce_stop(made.run.directory, os.getpid())
    state = TrainingState(torch.nn.Linear(1, 1), step=1, total_steps=4)
    may = [False]
    training: Any = type("Training", (), {"may_break_off": property(lambda self: may[0])})()
    training.state = state
    stopper = made._stopper(training)
    try:
        stopper.handle(number, None)
        assert lines.get(timeout=60) == "trainer.stopping_after_step()"
        assert (state.stop_message, state.stop_reason) == (message, reason)
        assert (state.stop_signal, state.is_interrupted) == (number.name, True)
        for _ in range(2):
            stopper.handle(signal.SIGINT, None)
        may[0] = True
        with pytest.raises(StopSignal):
            stopper.handle(signal.SIGINT, None)
    finally:
        stopper.close()


def holder(*callbacks: object) -> Any:
    return SimpleNamespace(callback_handler=SimpleNamespace(callbacks=[*callbacks]))


def test_of_callbacks_of_one_run_the_last_one_counts(tmp_path: Path) -> None:
    mine, again = (TemperCallback("tiny", settings(tmp_path)) for _ in range(2))
    other, own = TemperCallback("other", settings(tmp_path)), EndsAt()
    assert mine._is_replaced(None) is False
    for before, is_replaced, after in (
        ([own, mine, other], False, [own, mine, other]),
        ([mine, own, again], True, [mine, own, again]),
        ([again, own, mine, other], False, [again, own, mine, other]),
        ([mine, own, mine, other, mine], False, [mine, own, other]),
        ([mine, again, mine, own], False, [mine, own]),
    ):
        trainer = holder(*before)
        assert mine._is_replaced(trainer) is is_replaced
        assert trainer.callback_handler.callbacks == after


def test_who_shows_logs_comes_after_the_one_that_corrects_them(tmp_path: Path) -> None:
    mine = TemperCallback("tiny", settings(tmp_path))
    first, second, printer, last = EndsAt(), EndsAt(), PrinterCallback(), PrinterCallback()
    trainer = holder(first, printer, second, mine, last)
    mine._correct_logs_first(trainer)
    assert trainer.callback_handler.callbacks == [first, second, mine, printer, last]
    mine._correct_logs_first(None)


def test_a_folder_without_a_version_is_nothing_to_resume_from(tmp_path: Path) -> None:
    lines: list[str] = []
    callback = TemperCallback("tiny", settings(tmp_path), say=lines.append)
    (run_of(tmp_path) / FOLDER).mkdir(parents=True)
    assert callback.resume_from() is None
    assert not (run_of(tmp_path) / FOLDER).exists(), "of a training that is gone"
    callback.run.report("hf_" + "aB3" * 12)
    assert "aB3" not in lines[-1]


@pytest.mark.parametrize("name", ["", "../elsewhere", "a b", ".hidden", "hf_" + "aB3" * 12])
def test_a_name_must_be_a_folders(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=rf"trainer\.invalid_run_name\(name={re.escape(name)}\)"):
        TemperCallback(name, settings(tmp_path))


def test_settings_without_effect_are_reported(tmp_path: Path) -> None:
    config = settings(tmp_path, training={"learning_rate": 0.5, "keep_checkpoints": 3})
    _, _, lines = train(tmp_path, config=config, max_steps=1)
    notes = [line for line in lines if "trainer.setting_without_effect" in line]
    assert notes == ["trainer.setting_without_effect(key=training.learning_rate)"]
    begins = f"trainer.run_line_with_folder(run=tiny, folder={run_of(tmp_path)}, "
    assert f"{begins}copies=monitoring.trainer_not_backed_up())" in lines


def test_the_commands_of_temper_know_such_a_run_for_what_it_is(tmp_path: Path) -> None:
    train(tmp_path, max_steps=2)
    run, checkpoint = find_run("tiny@2", tmp_path / "runs")
    assert run.is_finished()
    assert checkpoint is not None
    with pytest.raises(ValueError, match=r"run\.run_of_a_trainer"):
        run.read_configuration()
    other = DeploymentConfig(output_dir=str(tmp_path / "runs"))
    assert newest_of_this_purpose(other, []) is None
    record = read_small_files(run.path).run
    assert config_of(record)["trainer.max_steps"] == (2, "TrainingArguments of the Trainer")
    assert record["model"]["num_trainable"] > 0
    plain = type(tiny_model()).from_pretrained(run.final)
    newest = CheckpointManager(run.checkpoints).newest()
    saved = load_checkpoint(newest).tensors["model"]
    assert torch.equal(dict(plain.named_parameters())[WTE], saved[WTE])


def draws_from_other_generators(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    """A forward hook that draws from NumPy and Python, an odd number of normal ones: the second of
    each pair is kept for the next draw."""
    return output * (1 + 0.1 * np.random.randn() + 0.1 * random.gauss(0, 1) + random.random())


class InterruptedAfter(Observer):
    """Ends the training after a step, and keeps the best loss of each step's beginning."""

    def __init__(self, step: int = -1) -> None:
        self.step = step
        self.best: dict[int, float] = {}

    def step_start(self, state: TrainingState) -> None:
        self.best[state.step] = state.best_evaluation_loss

    def step_end(self, state: TrainingState) -> None:
        if state.step == self.step:
            state.interrupt("enough for today")


def test_all_generators_and_the_best_loss_go_on_where_they_were(tmp_path: Path) -> None:
    def noisy(folder: Path, hook: InterruptedAfter) -> Any:
        random.seed(3)
        np.random.seed(3)
        trainer = trainer_of(folder, tiny_model(0.0), max_steps=8, **EVALUATED)
        trainer.model.lm_head.register_forward_hook(draws_from_other_generators)
        callback = TemperCallback("tiny", settings(folder), say=lambda line: None, hooks=[hook])
        trainer.add_callback(callback)
        with stop_passes():
            trainer.train(resume_from_checkpoint=callback.resume_from())
        return trainer

    unbroken, begins, goes_on = InterruptedAfter(), InterruptedAfter(5), InterruptedAfter()
    whole = noisy(tmp_path / "whole", unbroken)
    noisy(tmp_path / "broken", begins)
    again = noisy(tmp_path / "broken", goes_on)
    assert (max(begins.best), min(goes_on.best)) == (4, 5)
    assert torch.equal(weights(again.model), weights(whole.model))
    assert begins.best | goes_on.best == unbroken.best
    assert unbroken.best[0] == math.inf > unbroken.best[5]


STEPS = 4


class Stops(Observer):
    """Asks for a stop in the second step, by a signal or as a deadline does."""

    def __init__(self, number: signal.Signals | None) -> None:
        self.number = number

    def after_backward(self, state: TrainingState) -> None:
        if state.step == 1 and self.number is not None:
            os.kill(os.getpid(), self.number)

    def step_end(self, state: TrainingState) -> None:
        if state.step == 2 and self.number is None:
            state.interrupt("the deadline", StopReason.DEADLINE)


def script(folder: Path, *hooks: Observer, **options: Any) -> None:
    """A person's script, which saves the model as its result."""
    trainer = trainer_of(folder, max_steps=STEPS)
    callback = TemperCallback(
        "tiny", settings(folder), say=lambda line: None, hooks=hooks, **options
    )
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=callback.resume_from())
    trainer.save_model(str(folder / "result"))


def exit_code(work: Callable[[], None]) -> int:
    """The exit code of a process that does `work` as a script does."""

    def run() -> None:
        try:
            work()
        except KeyboardInterrupt:
            os._exit(130)  # as Python's own end by this signal looks to a shell
        except SystemExit as end:
            os._exit(int(end.code or 0))

    return os.waitstatus_to_exitcode(os.waitpid(in_child(run), 0)[1])


@pytest.mark.parametrize(
    ("number", "code"),
    slow_but(
        [(signal.SIGHUP, 129), (None, 75)],
        [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (None, 75)],
    ),
)
def test_a_stopped_script_saves_no_result_until_it_is_run_again(
    tmp_path: Path, number: signal.Signals | None, code: int
) -> None:
    assert exit_code(lambda: script(tmp_path, Stops(number))) == code
    summary = json.loads((tmp_path / "runs/tiny/summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("stopped", 2)
    assert not (tmp_path / "result").exists()
    assert exit_code(lambda: script(tmp_path)) == 0
    result = (tmp_path / "result/model.safetensors").read_bytes()
    assert result == (tmp_path / "runs/tiny/final/model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, RunStoppedError)],
)
def test_a_kernel_gets_an_error_that_does_not_end_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    error: type[BaseException],
) -> None:
    monkeypatch.setattr(callback, "in_notebook_kernel", lambda: True)
    with pytest.raises(error, match=r"trainer\.stopped\(run=tiny, step=2, how="):
        script(tmp_path, Stops(number))
    assert not (tmp_path / "result").exists()
    assert isinstance(exception_of_stop(None, ""), RunStoppedError)


def test_a_caller_that_handles_stops_itself_gets_control_back(tmp_path: Path) -> None:
    script(tmp_path, Stops(signal.SIGTERM), is_whole=True)
    assert (tmp_path / "result").exists()


def test_a_trainer_that_was_stopped_can_train_again_with_its_noise_once() -> None:
    removed: list[str] = []
    handle = SimpleNamespace(remove=lambda: removed.append("noise"))
    trainer = SimpleNamespace(is_in_train=True, neftune_noise_alpha=5, neftune_hook_handle=handle)
    leave_training(trainer)
    assert (trainer.is_in_train, removed) == (False, ["noise"])
    trainer.neftune_noise_alpha = None
    leave_training(trainer)
    assert removed == ["noise"], "there is none"
    leave_training(None)


@pytest.mark.parametrize("in_kernel", [False, True])
@pytest.mark.parametrize(
    ("name", "code"), [("SIGINT", None), ("SIGTERM", 143), ("SIGHUP", 129), (None, 75)]
)
def test_a_stop_ends_a_script_with_its_code_and_a_cell_with_its_text(
    monkeypatch: pytest.MonkeyPatch, in_kernel: bool, name: str | None, code: int | None
) -> None:
    monkeypatch.setattr(callback, "in_notebook_kernel", lambda: in_kernel)
    error = exception_of_stop(name, "run it again")
    if code is None or in_kernel:
        assert type(error) is (KeyboardInterrupt if code is None else RunStoppedError)
        assert str(error) == "run it again"
    else:
        assert isinstance(error, SystemExit)
        assert error.code == code


WEIGHT = torch.arange(6.0).reshape(2, 3)


def version(model: dict[str, Any], scaler: dict[str, Any] | None = None) -> Snapshot:
    """Of a training whose optimizer has nothing to remember."""
    encoded = torch.frombuffer(bytearray(b'{"global_step": 4}'), dtype=torch.uint8)
    tensors = {
        "model": {"a.weight": WEIGHT},
        "random": capture_random(torch.device("cpu")),
        "trainer": {"trainer_state.json": encoded},
    }
    optimizer = {"values": {}, "param_groups": [{"lr": 0.5, "params": [0]}]}
    values = {"optimizer": optimizer, "scheduler": {"last_epoch": 4}, "scaler": scaler}
    return Snapshot(tensors, {**values, "model": model})


def whole(config: str | None) -> dict[str, Any]:
    return {"adapters": None, "config": config, "tied": {"b.weight": "a.weight"}}


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


ALWAYS = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"}


@pytest.mark.parametrize("config", [None, '{"model_type": "gpt2"}'])
def test_a_whole_model_with_its_tied_weights_and_its_configuration_where_it_has_one(
    tmp_path: Path, config: str | None
) -> None:
    snapshot = version(whole(config))
    snapshot.tensors["model"]["a.weight"] = WEIGHT.t().contiguous().t()  # as training may hold it
    folder = write_checkpoint_folder(snapshot, tmp_path / "f", tmp_path / "none")
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}, "transformers reads no other"
    assert names(folder) == {"model.safetensors", *ALWAYS, *(["config.json"] if config else [])}
    if config:
        assert (folder / "config.json").read_text() == config
    found = load_file(folder / "model.safetensors")
    assert found.keys() == {"a.weight", "b.weight"}
    assert all(torch.equal(tensor, WEIGHT) for tensor in found.values())
    assert json.loads((folder / "trainer_state.json").read_text()) == {"global_step": 4}
    optimizer = torch.load(folder / "optimizer.pt", weights_only=True)
    assert optimizer["param_groups"] == [{"lr": 0.5, "params": [0]}]
    assert torch.load(folder / "scheduler.pt", weights_only=True) == {"last_epoch": 4}


def test_adapters_lie_in_folders_of_their_names_and_the_first_in_none(tmp_path: Path) -> None:
    adapters = {
        name: {"config": {"r": rank}, "names": {"x.lora_A": weight}}
        for name, rank, weight in (("default", 3, "a.weight"), ("other", 4, "b.weight"))
    }
    snapshot = version({"adapters": adapters})
    snapshot.tensors["model"]["b.weight"] = 2 * WEIGHT
    folder = write_checkpoint_folder(snapshot, tmp_path / "f", tmp_path / "none")
    files = {"adapter_config.json", "adapter_model.safetensors"}
    assert names(folder) == {*ALWAYS, *files, *(f"other/{name}" for name in files)}
    for inside, rank, weight in ((folder, 3, WEIGHT), (folder / "other", 4, 2 * WEIGHT)):
        assert json.loads((inside / "adapter_config.json").read_text()) == {"r": rank}
        found = load_file(inside / "adapter_model.safetensors")
        assert torch.equal(found["x.lora_A"], weight)


def test_the_tokenizer_and_the_loss_scaler_come_with_it(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    snapshot = version(whole(None), scaler={"scale": 8.0})
    folder = write_checkpoint_folder(snapshot, tmp_path / "f", tmp_path / "tokenizer")
    assert {"tokenizer.json", "scaler.pt"} <= names(folder)
    assert torch.load(folder / "scaler.pt", weights_only=True) == {"scale": 8.0}


@pytest.mark.parametrize("has_drawn", [False, True])
def test_each_generator_goes_on_where_it_was(
    has_drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the second half of a drawn pair of normal numbers that Python and NumPy keep."""
    python, numpy, own = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        if has_drawn:
            random.gauss(0, 1)
            np.random.normal()
        captured = capture_random(torch.device("cpu"))
        expected = [random.gauss(0, 1), np.random.normal(), float(torch.rand(1))]
        states = random_states(captured)  # when they have gone on
        random.setstate(states["python"])
        np.random.set_state(states["numpy"])
        torch.set_rng_state(states["cpu"])
        assert [random.gauss(0, 1), np.random.normal(), float(torch.rand(1))] == expected
        assert "cuda" not in states or torch.cuda.is_available()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
        devices = {f"cuda_{n}": torch.tensor([n]) for n in range(3)}
        assert random_states({**captured, **devices})["cuda"] is devices["cuda_1"]
        assert "cuda" not in random_states({**captured, "cuda_0": devices["cuda_0"]})
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(own)


def test_the_best_model_lies_where_the_state_of_the_trainer_points(tmp_path: Path) -> None:
    snapshot = version(whole(None))
    state = {"global_step": 4, "best_global_step": 3, "best_model_checkpoint": "/gone/checkpoint-3"}
    content = torch.tensor([1, 2, 250], dtype=torch.uint8)
    encoded = torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)
    snapshot.tensors["trainer"] = {"trainer_state.json": encoded}
    snapshot.tensors["best"] = {"model.safetensors": content, "b/config.json": content[:1]}
    folder = write_checkpoint_folder(snapshot, tmp_path / "f", tmp_path / "none")
    read = json.loads((folder / "trainer_state.json").read_text())
    best = Path(read.pop("best_model_checkpoint"))
    assert read == {"global_step": 4, "best_global_step": 3}
    assert best.name == "checkpoint-3"
    assert best.is_relative_to(folder)
    assert best.parent != folder, "PEFT takes a folder with weights in it for an adapter"
    assert (best / "model.safetensors").read_bytes() == bytes([1, 2, 250])
    assert (best / "b/config.json").read_bytes() == bytes([1])
