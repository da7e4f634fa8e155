"""A whole run, its files, its end by a signal, and going on: what people start with one command."""

import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from infrastructure.commands.resume import resume
from infrastructure.commands.train import train
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import GivenValue, Layer, Source
from infrastructure.config.sections.model_config import LoraConfig
from infrastructure.core import stop_signals
from infrastructure.core.agent import AgentFolder
from infrastructure.core.checksums import write_record
from infrastructure.core.errors import CheckpointError, StorageError
from infrastructure.core.messages import phrase
from infrastructure.core.stop_signals import (
    StopSignal,
    interrupt_on_signals,
    reason_of,
)
from infrastructure.data.samples import use_sample_data
from infrastructure.deployment import deploy_training, run_finalizer
from infrastructure.deployment.deploy_training import TrainingDeployment, stop_on_signals
from infrastructure.evaluation.evaluate import measure_model
from infrastructure.evaluation.held_out import HeldOut, measure
from infrastructure.monitoring.records.run_owner import announce_stop
from infrastructure.run.checkpoint_paths import step_of
from infrastructure.run.compatibility import Difference, Verdict
from infrastructure.run.directory import RunDirectory
from infrastructure.run.lock import only_trainer_of
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.core.state import StopReason, TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.model_adapters.standard_adapter import StandardModelAdapter
from tests.deployment.runs import small_config
from tests.deployment.test_resuming import stop_after
from tests.slow import slow, slow_but


def write_rows(folder: Path) -> Path:
    rows = [{"question": f"Reverse {n}", "answer": str(n)[::-1]} for n in range(100, 140)]
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n{broken\n")
    return path


@pytest.fixture
def data_file(tmp_path: Path) -> Path:
    return write_rows(tmp_path)


def config_in(folder: Path, llama: Path, **training: Any) -> DeploymentConfig:
    settings = {"batch_size": 4, "num_epochs": 1, "validation_prompts": 0, "warmup_steps": 1}
    return DeploymentConfig(
        model={"name": str(llama)},
        data={"path": str(folder / "rows.jsonl"), "max_length": 64, "num_workers": 0},
        training={**settings, **training},
        cache={"directory": str(folder / "cache")},
        output_dir=str(folder / "runs"),
        device="cpu",
        new_run=True,  # going on is shown in test_resuming.py
        enable_testing=False,
    )


@pytest.fixture
def configure(
    saved_llama: Path, data_file: Path, tmp_path: Path
) -> Callable[..., DeploymentConfig]:
    return partial(config_in, tmp_path, saved_llama)


@pytest.fixture(scope="module")
def whole(saved_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run, with which others are compared."""
    folder = tmp_path_factory.mktemp("whole")
    write_rows(folder)
    return deploy(config_in(folder, saved_llama))[0]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(next((run / "final").glob("*.safetensors")))


def deploy(config: DeploymentConfig) -> tuple[Path, list[str]]:
    lines: list[str] = []
    summary = TrainingDeployment(config, say=lines.append).run()
    return Path(summary["paths"]["run"]), lines


def test_a_run_leaves_everything_behind(configure: Callable[..., DeploymentConfig]) -> None:
    config = configure(validation_prompts=4)
    config.enable_testing = True
    run, lines = deploy(config)
    assert len([line for line in lines if "data.model_without_chat_template" in line]) == 1
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
    text = "\n".join(lines)
    assert "held-out loss" in text
    assert "run.report_line(" in text
    stages = summary["stages"]
    expected = ["model", "data", "checks", "fit", "measure", "train", "save", "evaluate"]
    assert [stage["name"] for stage in stages] == [*expected, "clean up"]
    assert all(stage["seconds"] >= 0 for stage in stages)
    assert "monitoring.timing_heading" in (run / "report.html").read_text()


class StopAt(Observer):
    """Sends this process a signal at one step, as a person or a cluster would."""

    def __init__(self, step: int, number: signal.Signals) -> None:
        self.step, self.number = step, number

    def step_start(self, state: TrainingState) -> None:
        if state.step == self.step:
            os.kill(os.getpid(), self.number)


def test_a_failed_stage_is_named(
    configure: Callable[..., DeploymentConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Any, folder: Path) -> None:
        raise OSError("no room")

    monkeypatch.setattr(StandardModelAdapter, "save", refuse)
    config = configure(max_steps=1)
    with pytest.raises(OSError, match="no room"):
        deploy(config)
    (run,) = Path(config.output_dir).iterdir()
    summary = json.loads((run / "summary.json").read_text())
    stages = {stage["name"]: stage for stage in summary["stages"]}
    assert stages["save"]["error"] == "OSError"
    assert "clean up" in stages
    assert summary["status"] == "failed"


@pytest.mark.parametrize("number", slow_but([signal.SIGTERM], [signal.SIGINT, signal.SIGTERM]))
def test_a_stopped_run_goes_on_to_the_same_bits(
    configure: Callable[..., DeploymentConfig],
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    whole: Path,
) -> None:
    observers = deploy_training.TrainingDeployment._observers
    with monkeypatch.context() as patch:
        patch.setattr(
            TrainingDeployment,
            "_observers",
            lambda self, run, copies: [*observers(self, run, copies), StopAt(5, number)],
        )
        stopped, lines = deploy(configure())
    assert json.loads((stopped / "summary.json").read_text())["status"] == "stopped"
    assert not (stopped / "final").exists()
    assert any("deployment.stopped_at_step" in line for line in lines)
    assert resume(str(stopped), str(stopped.parent)) == 0
    assert json.loads((stopped / "summary.json").read_text())["status"] == "finished"
    first, second = weights(whole), weights(stopped)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert losses(whole) == losses(stopped)


def losses(run: Path) -> list[tuple[int, float]]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [(r["step"], r["loss"]) for r in records if "loss" in r]


def test_a_lora_does_not_go_on_with_another_base(
    configure: Callable[..., DeploymentConfig], saved_llama: Path, tmp_path: Path
) -> None:
    base = shutil.copytree(saved_llama, tmp_path / "base")
    config = configure(max_steps=1)
    config.model.name, config.model.lora_config = str(base), LoraConfig(r=2)
    run, _ = deploy(config)
    weights = load_file(base / "model.safetensors")
    save_file(
        {n: t + 0.1 for n, t in weights.items()}, base / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(CheckpointError, match=r"changes=base_model: was .*accept=base_model"):
        resume(f"{run.name}@1", str(run.parent))


def test_a_finished_run_is_left_alone_and_goes_on_with_one_trainer_and_its_own_data(
    configure: Callable[..., DeploymentConfig], data_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = deploy(configure(max_steps=2))
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert resume(str(run), str(run.parent)) == 0
    out = capsys.readouterr().out
    assert f"deployment.resumed_run_finished(run_id={run.name}, " in out
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    with only_trainer_of(run), pytest.raises(ValueError, match=f"trainer=process {os.getpid()} "):
        resume(f"{run.name}@2", str(run.parent))
    data_file.write_text(data_file.read_text().replace("Reverse 100", "Reverse 999"))
    with pytest.raises(CheckpointError, match=r"changes=data: was .*accept=data"):
        resume(f"{run.name}@2", str(run.parent))


def test_a_run_whose_checkpoints_are_gone_goes_on_with_those_at_its_place(
    configure: Callable[..., DeploymentConfig], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "disk/temper"
    place.parent.mkdir()
    config = configure(max_steps=3)
    config.new_run, config.backup.place = False, str(place)
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        run, _ = deploy(config.model_copy(deep=True))
    shutil.rmtree(run / "checkpoints")
    again, lines = deploy(config)
    assert again == run
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 3)
    assert [one["step"] for one in summary["went_on"]] == [2]
    named = next(n for n, line in enumerate(lines) if run.name in line and str(place) in line)
    assert named < next(
        n for n, line in enumerate(lines) if "resuming_from_step" in line and "step=2" in line
    )


def test_going_on_from_an_earlier_step_is_a_branch_of_its_own(
    configure: Callable[..., DeploymentConfig],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stopped there, it goes on from where it was stopped, not from the older branch."""
    settings = {"checkpoint_frequency": 1, "keep_checkpoints": 99, "max_steps": 4}
    run, _ = deploy(configure(**settings))
    observers = TrainingDeployment._observers
    with monkeypatch.context() as patch:
        patch.setattr(
            TrainingDeployment,
            "_observers",
            lambda self, run, copies: [*observers(self, run, copies), StopAt(2, signal.SIGTERM)],
        )
        assert resume(f"{run.name}@1", str(run.parent)) == 143
    newest = CheckpointManager(run / "checkpoints").newest()
    assert step_of(newest) == 3
    assert [step for step, _ in losses(run)] == [1, 2, 3]
    assert resume(str(run), str(run.parent)) == 0


class Interrupts(Observer):
    """Ctrl-C that is not handled by the loop: a second one, or one outside of it."""

    def step_end(self, state: TrainingState) -> None:
        if state.step == 5:
            raise KeyboardInterrupt


def test_an_interrupt_at_once_is_a_stop_too(
    configure: Callable[..., DeploymentConfig], monkeypatch: pytest.MonkeyPatch, whole: Path
) -> None:
    observers = TrainingDeployment._observers
    with monkeypatch.context() as patch:
        patch.setattr(
            TrainingDeployment,
            "_observers",
            lambda self, run, copies: [*observers(self, run, copies), Interrupts()],
        )
        stopped, lines = deploy(configure())
    summary = json.loads((stopped / "summary.json").read_text())
    assert (summary["status"], summary["reason"]) == ("stopped", "interrupted")
    assert any("deployment.stopped_at_step" in line for line in lines)
    assert resume(str(stopped), str(stopped.parent)) == 0
    first, second = weights(whole), weights(stopped)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("call", [1, 2])
def test_an_interrupted_measurement(
    configure: Callable[..., DeploymentConfig],
    monkeypatch: pytest.MonkeyPatch,
    call: int,
) -> None:
    calls = []

    def interrupted(trainer: Any, count: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGTERM)
        return measure(trainer, count)

    monkeypatch.setattr(deploy_training, "measure", interrupted)
    monkeypatch.setattr(run_finalizer, "measure", interrupted)
    config = configure(max_steps=2)
    if call == 1:
        with pytest.raises(KeyboardInterrupt):
            train(config)
        assert not Path(config.output_dir).exists()
        return
    assert train(config) == 143
    (run,) = Path(config.output_dir).iterdir()
    assert json.loads((run / "summary.json").read_text())["status"] == "stopped"
    assert resume(str(run), str(run.parent)) == 0
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"


@slow
@pytest.mark.parametrize("contents", [None, "[]", "{", '{"metrics": 3}'])
def test_what_was_measured_before_is_only_shown(
    configure: Callable[..., DeploymentConfig], contents: str | None
) -> None:
    run, _ = deploy(configure(max_steps=2))
    (run / "before.json").unlink()
    if contents is not None:
        (run / "before.json").write_text(contents)
    assert resume(f"{run.name}@2", str(run.parent)) == 0


def test_an_8_bit_optimizer_goes_on_to_the_same_bits(
    configure: Callable[..., DeploymentConfig],
) -> None:
    settings = {"checkpoint_frequency": 1, "keep_checkpoints": 99, "max_steps": 3}
    whole, _ = deploy(configure(optimizer="adamw_8bit", **settings))
    expected = weights(whole)
    assert resume(f"{whole.name}@2", str(whole.parent)) == 0
    found = weights(whole)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_a_failed_run_gives_the_reason(
    configure: Callable[..., DeploymentConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, run: Any, copies: Any) -> list[Observer]:
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
    assert summary["status"] == "failed"
    assert summary["error"].startswith("OSError: the disk went away at test_deploy_training.py:")
    assert "the disk went away" in (run / "report.html").read_text()


def test_early_stopping_ends_a_run_that_does_not_improve(
    configure: Callable[..., DeploymentConfig],
) -> None:
    config = configure(
        **{"num_epochs": 9, "validation_frequency": 2, "early_stopping_patience": 1},
        learning_rate=1e-12,
    )
    run, _ = deploy(config)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["epochs"] < 9
    assert "training.not_improving" in summary["reason"]


def test_the_saved_model_has_the_loss_that_the_run_ended_with(
    configure: Callable[..., DeploymentConfig], data_file: Path, tmp_path: Path
) -> None:
    held_out = tmp_path / "test.jsonl"
    held_out.write_text("\n".join(data_file.read_text().splitlines()[:8]))
    config = configure(max_steps=3)
    config.data.eval_path = str(held_out)
    run, _ = deploy(config)
    after = json.loads((run / "summary.json").read_text())["after"]["eval_loss"]
    again = configure()
    again.model.name, again.data.path = str(run / "final"), str(held_out)
    _, lines = measure_model(again)
    (written,) = (tmp_path / "runs" / "evaluations").glob("*.json")
    assert json.loads(written.read_text())["metrics"]["eval_loss"] == pytest.approx(after, rel=1e-6)
    assert any("loss per token" in line for line in lines)


def test_the_embedded_model_has_sample_data() -> None:
    config = DeploymentConfig()
    use_sample_data(config)
    assert config.data.path is not None
    assert Path(config.data.path).is_file()
    assert config.data.task_column == "task"


@pytest.mark.parametrize("new_run", [False, True])
def test_a_refused_run_leaves_no_empty_output_folder(new_run: bool, tmp_path: Path) -> None:
    config = small_config(tmp_path)
    config.new_run = new_run
    (tmp_path / "rows.jsonl").write_text('{"prompt": ')
    with pytest.raises(ValueError, match=r"data\.no_readable_row"):
        deploy(config)
    assert not Path(config.output_dir).exists()


def test_a_method_of_trl_resumes_only_from_its_newest_checkpoint(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "mine")
    deployment = TrainingDeployment(DeploymentConfig(training={"method": "dpo"}), str)
    code = r"deployment\.method_resumes_newest_only\(method=dpo, run_id=mine\)"
    with pytest.raises(ValueError, match=code):
        deployment.resume(run, tmp_path / "a-version")


def test_runs_that_may_have_been_meant_are_named_with_a_few_of_their_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    deployment = TrainingDeployment(DeploymentConfig(), lines.append)
    run, words = RunDirectory(tmp_path / "mine"), [f"change {n}" for n in range(6)]
    monkeypatch.setattr(deploy_training, "changed_under_way", lambda *_: (run, words))
    monkeypatch.setattr(deploy_training, "unfinished_beside", lambda *_: (run, words))
    assert deployment._name_changed()
    deployment._name_unfinished()
    few = [f"change {n}" for n in range(4)]
    of = f"path={run.path})"
    assert lines == [
        f"deployment.matching_run_was_changed(run_id=mine, changes={'; '.join(few)}, {of}",
        "deployment.similar_run_unfinished("
        f"run_id=mine, settings={', '.join(few)}, more= and 2 more, {of}",
    ]
    lines.clear()
    monkeypatch.setattr(deploy_training, "unfinished_beside", lambda *_: (run, words[:4]))
    deployment._name_unfinished()
    assert "more=, " in lines.pop()
    for name in ("changed_under_way", "unfinished_beside"):
        monkeypatch.setattr(deploy_training, name, lambda *_: None)
    assert not deployment._name_changed()
    deployment._name_unfinished()
    assert lines == []


def test_what_is_shorter_than_configured_is_noted() -> None:
    def notes(**training: Any) -> list[str]:
        return deploy_training.shorter_than_given(DeploymentConfig(training=training), 10)

    assert notes() == []  # the default of 50 is for long trainings, and fits itself
    assert notes(warmup_steps=5) == []
    [note] = notes(warmup_steps=6)
    assert "config.warmup_too_long(wanted=6, total_steps=10, " in note
    assert notes(max_steps=10) == []
    [note] = notes(max_steps=12)
    assert "deployment.max_steps_without_effect(max_steps=12, total_steps=10)" in note
    for layer, num_notes in ((Layer.FILE, 0), (Layer.FLAG, 1)):
        given = GivenValue("training.max_steps", 12, Source(layer, "somewhere"))
        config = DeploymentConfig().changed([given])
        assert len(deploy_training.shorter_than_given(config, 10)) == num_notes


@pytest.mark.parametrize(
    ("measured_on", "rows", "on_disk", "again"),
    [
        ("a", "a", False, False),
        (None, "a", False, False),  # nobody knows which rows these were
        ("a", None, False, False),
        ("a", "b", False, True),
        ("a", "b", True, False),
    ],
)
def test_what_was_measured_before_is_of_the_rows_that_are_held_out_now(
    measured_on: str | None,
    rows: str | None,
    on_disk: bool,
    again: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = RunDirectory(tmp_path)
    before, anew = (
        HeldOut({"eval_loss": loss}, measured_on=of)
        for loss, of in ((4.0, measured_on), (3.0, rows))
    )
    write_record(run.before_file, before.to_dict())
    monkeypatch.setattr(deploy_training, "measure", lambda trainer, count: anew)
    adapter = SimpleNamespace(on_disk=on_disk)
    data = SimpleNamespace(held_out_identity=rows)
    trainer: Any = SimpleNamespace(initialize_data=lambda: data, adapter=adapter)
    lines: list[str] = []
    deployment = TrainingDeployment(DeploymentConfig(), lines.append)
    found = deployment._before(run, trainer)
    is_changed = (measured_on, rows) == ("a", "b")
    assert lines == ["deployment.held_out_rows_changed()"] * is_changed
    nothing = HeldOut({})
    assert found == (anew if again else nothing if on_disk else before)
    assert deploy_training.measured_before(run) == (anew if again else before)


@pytest.mark.parametrize(
    ("of_this_run", "newest_at_first", "has_gone_on"),
    [(True, "", True), (True, "the newest", False), (False, "", False)],
)
def test_processes_that_are_started_again_go_on_with_what_they_have_saved(
    of_this_run: bool,
    newest_at_first: str,
    has_gone_on: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not from the checkpoint that the command line names."""
    run = RunDirectory(tmp_path / "run")
    agent = AgentFolder(tmp_path)
    agent.note_run(run.path if of_this_run else tmp_path / "other", newest_at_first)
    monkeypatch.setattr(deploy_training, "agent_folder", lambda: agent)
    monkeypatch.setattr(deploy_training, "_newest_version", lambda _: "the newest")
    assert deploy_training._has_gone_on(run) is has_gone_on
    monkeypatch.setattr(deploy_training, "agent_folder", lambda: None)
    assert not deploy_training._has_gone_on(run)


def test_a_checkpoint_that_is_lost_here_is_looked_for_at_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, requested = RunDirectory(tmp_path / "runs/mine"), list[tuple[Any, ...]]()

    def restore(*given: Any) -> tuple[RunDirectory, Path]:
        requested.append(given)
        return run, tmp_path / "brought back"

    monkeypatch.setattr(deploy_training, "restore_run", restore)
    place = DeploymentConfig(backup={"place": str(tmp_path / "place")})
    lines: list[str] = []
    for config in (DeploymentConfig(), place):
        deployment = TrainingDeployment(config, lines.append)
        if config is place:
            assert deployment._newest(run) == tmp_path / "brought back"
        else:
            with pytest.raises(CheckpointError):
                deployment._newest(run)
    assert requested == [("mine", place.backup, tmp_path / "runs")]
    [line] = lines
    looking = "deployment.looking_for_intact_version(error=run.nothing_to_resume_from("
    assert line.startswith(looking)
    assert line.endswith(f", place={tmp_path / 'place'})")


@pytest.mark.parametrize(
    ("here", "place", "is_missing", "there", "restores"),
    [
        (["a-version"], "there", False, ["mine"], None),
        ([], None, False, ["mine"], False),
        ([], "there", True, ["mine"], False),
        ([], "there", False, ["other"], False),
        ([], "there", False, ["other", "mine"], True),
    ],
)
def test_a_run_without_checkpoints_here_is_looked_for_at_its_destination(
    here: list[str],
    place: str | None,
    is_missing: bool,
    there: list[str],
    restores: bool | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    checked: list[RunDirectory] = []
    restored: list[tuple[Any, ...]] = []
    run = RunDirectory(tmp_path / "runs/mine")

    class Copies:
        """Copies of a run whose destination may be away."""

        backup = SimpleNamespace(is_missing=is_missing, place_id="an id")

        def __init__(self, run: RunDirectory, *_: object) -> None:
            checked.append(run)

        def check_place(self) -> None: ...

    monkeypatch.setattr(deploy_training, "RunReplication", Copies)
    monkeypatch.setattr(CheckpointManager, "checkpoints", lambda self: here)
    monkeypatch.setattr(deploy_training, "runs_at_place", lambda options: there)
    monkeypatch.setattr(deploy_training, "restore_run", lambda *given: restored.append(given))
    config = DeploymentConfig(backup={"place": place and str(tmp_path / place)})
    deployment = TrainingDeployment(config, lines.append)
    for _ in range(2):
        assert deployment._has_version(run) is (restores is not False)
    assert checked == ([] if restores is None else [run]), "once"
    where = str(tmp_path / "there")
    line = f"deployment.looking_at_destination(run_id=mine, destination={where})"
    assert lines == [line] * (2 if restores else 0)
    assert restored == [("mine", config.backup, tmp_path / "runs")] * (2 if restores else 0)
    assert deployment._place_id == (None if restores is None else "an id")


@pytest.mark.parametrize(
    ("place", "found", "error", "expected"),
    [
        (None, "mine", None, None),
        ("there", None, None, None),
        ("there", "mine", None, "mine"),
        ("there", StorageError("away"), "deployment.unfinished_run_may_be_there()", None),
        ("there", "mine", "deployment.remaining_copies_stay()", None),
        ("away", "mine", None, None),
    ],
)
def test_a_run_of_these_settings_comes_from_the_destination(
    place: str | None,
    found: Any,
    error: str | None,
    expected: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    run = RunDirectory(tmp_path / "mine")

    def look(config: DeploymentConfig, accepted: object) -> str | None:
        if isinstance(found, Exception):
            raise found
        result: str | None = found
        return result

    def restore(*given: Any, report: object) -> Any:
        assert given == ("mine", config.backup, tmp_path)
        assert report is deployment.report
        if error is not None:
            raise CheckpointError("damaged")
        return run, tmp_path / "a-version"

    monkeypatch.setattr(deploy_training, "run_at_place", look)
    monkeypatch.setattr(deploy_training, "restore_run", restore)
    config = DeploymentConfig(
        backup={"place": place and str(tmp_path / place)}, output_dir=str(tmp_path)
    )
    deployment = TrainingDeployment(config, lines.append)
    deployment.is_place_missing = place == "away"
    if error is None:
        assert deployment._run_from_place() == (expected and run)
    else:
        with pytest.raises((StorageError, CheckpointError)) as caught:
            deployment._run_from_place()
        assert caught.value.__notes__ == [error]
    where = f"run_id=mine, destination={tmp_path / 'there'}"
    is_restored = place == "there" and found == "mine"
    assert lines == [f"deployment.restoring_matching_run({where})"] * is_restored


def test_the_first_measurement_is_kept_unless_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    measured: list[Any] = []

    def measure_it(trainer: Any, *more: Any) -> HeldOut:
        measured.append((trainer, len(more)))
        if is_interrupted:
            raise KeyboardInterrupt
        return HeldOut({"eval_loss": 2.0})

    monkeypatch.setattr(deploy_training, "measure", measure_it)
    run = RunDirectory(tmp_path / "mine")
    run.path.mkdir()
    deployment = TrainingDeployment(DeploymentConfig(), str)
    on_disk: Any = SimpleNamespace(adapter=SimpleNamespace(on_disk=True))
    trainer: Any = SimpleNamespace(adapter=SimpleNamespace(on_disk=False))
    is_interrupted = False
    assert deployment._measure(run, on_disk) == HeldOut({})  # all ranks measure it later
    assert deploy_training.measured_before(run) == HeldOut({})
    assert f"deployment.baseline_unreadable(file={run.before_file}, error=" in caplog.text
    assert deployment._measure(run, trainer).metrics == {"eval_loss": 2.0}
    assert deploy_training.measured_before(run).metrics == {"eval_loss": 2.0}
    assert measured == [(trainer, 1)]
    for text in ("torn", "[]", "{}"):
        run.before_file.write_text(text)
        assert deploy_training.measured_before(run) == HeldOut({})
    is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        deployment._measure(run, trainer)
    assert not run.path.exists()


def test_accepted_changes_without_a_step_left_are_named() -> None:
    lines: list[str] = []
    deployment = TrainingDeployment(DeploymentConfig(), lines.append)
    changes = [
        Difference(name, "a", "b", verdict)
        for name, verdict in (
            ("data", Verdict.CHANGES_THE_RESULT),
            ("torch", Verdict.HARMLESS),
            ("seed", Verdict.CHANGES_THE_RESULT),
        )
    ]
    deployment._note_without_effect(changes[1:2])
    assert lines == []
    deployment._note_without_effect(changes)
    assert lines == ["deployment.accepted_change_without_effect(names=data, seed)"]


@pytest.mark.parametrize("was_finished", [True, False])
def test_a_finished_run_is_completed_and_shown(
    was_finished: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, done = RunDirectory(tmp_path / "mine"), list[Any]()
    run.path.mkdir()
    copies = SimpleNamespace(
        compare_anew=lambda: done.append("compare"),
        report_incomplete=lambda: done.append("incomplete"),
    )
    monkeypatch.setattr(deploy_training, "RunReplication", lambda *given: copies)

    def giving(result: object) -> Callable[..., object]:
        def call(*given: object) -> object:
            done.append(given)
            return result

        return call

    monkeypatch.setattr(deploy_training, "complete_finished", giving({"a": 1}))
    monkeypatch.setattr(deploy_training, "closing_lines", giving(["the result"]))
    lines: list[str] = []
    deployment = TrainingDeployment(DeploymentConfig(backup={"finish_seconds": 7.0}), lines.append)
    deployment._how_to_train_again = "; so again"
    summary = deployment.complete(run, True, was_finished=was_finished)
    assert summary == {"a": 1}
    assert done == ["compare", (run, copies, 7.0), (run.path, {"a": 1}, True), "incomplete"]
    code = "run_finished_before" if was_finished else "run_finished"
    of_run = f"run_id=mine, model={run.final}, hint=; so again"
    assert lines == ["the result", f"deployment.{code}({of_run})"]


def test_helpers_of_a_training_are_ended_however_it_ends() -> None:
    ended: list[str] = []

    def launch() -> None:
        raise OSError("no process more")

    close = partial(ended.append, "closed")
    for start in (lambda: None, launch):
        ranks = SimpleNamespace(launch=start, close=close)
        trainer: Any = SimpleNamespace(placement=SimpleNamespace(ranks=ranks))
        with suppress(OSError), deploy_training.with_ranks(trainer):
            raise OSError("inside")
    assert ended == ["closed"] * 2


ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def state() -> TrainingState:
    return TrainingState(torch.nn.Linear(1, 1))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_requests_a_stop(state: TrainingState, number: signal.Signals) -> None:
    with stop_on_signals(state):
        os.kill(os.getpid(), number)
    assert state.stop_reason is StopReason.SIGNAL
    assert state.stop_message == reason_of(number)
    assert (state.is_interrupted, state.stop_signal) == (True, number.name)


@pytest.mark.parametrize("is_for_this_process", [True, False])
def test_temper_stop_is_known_from_other_signals(
    state: TrainingState, tmp_path: Path, is_for_this_process: bool
) -> None:
    announce_stop(tmp_path, os.getpid() if is_for_this_process else 1)
    with stop_on_signals(state, run_path=tmp_path):
        os.kill(os.getpid(), signal.SIGTERM)
    if is_for_this_process:
        assert (state.stop_reason, state.stop_message) == (
            StopReason.COMMAND,
            phrase("core.stopped_by_command"),
        )
    else:
        assert (state.stop_reason, state.stop_message) == (
            StopReason.SIGNAL,
            "ended from outside (SIGTERM)",
        )
    assert state.stop_signal == "SIGTERM"  # which decides the exit code
    assert not [*tmp_path.iterdir()]


def test_the_first_signal_is_the_one_that_is_reported(state: TrainingState) -> None:
    """A terminal that is closed may be told of twice: by the kernel, and by the shell."""
    with stop_on_signals(state):
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM):
            os.kill(os.getpid(), number)
    assert (state.stop_message, state.stop_signal) == ("its terminal was closed (SIGHUP)", "SIGHUP")


def test_a_second_ctrl_c_breaks_off_the_step(state: TrainingState) -> None:
    with stop_on_signals(state):
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt, match="interrupted"):
            os.kill(os.getpid(), signal.SIGINT)


def sleep_after(act: Callable[[], object]) -> None:
    """What `act` brings about may come at once, or while this sleeps."""
    act()
    time.sleep(60)


def test_it_waits_until_nothing_is_lost_by_it(state: TrainingState) -> None:
    allowed = threading.Event()
    with stop_on_signals(state, allowed.is_set):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)  # the weights change, or are being saved
        with pytest.raises(KeyboardInterrupt):
            sleep_after(threading.Timer(0.1, allowed.set).start)


def test_any_more_ctrl_c_lose_nothing_that_waiting_keeps(state: TrainingState) -> None:
    allowed = threading.Event()
    with stop_on_signals(state, allowed.is_set):
        for _ in range(5):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(StopSignal):
            sleep_after(allowed.set)


def test_what_is_raised_is_the_first_signal_and_is_not_raised_again_while_it_unwinds(
    state: TrainingState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_signals, "UNWINDING_SECONDS", 60.0)  # as long as the machine likes
    unwound: list[bool] = []

    def broken_off() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            os.kill(os.getpid(), signal.SIGINT)  # such as while the last version is written
            unwound.append(True)

    with stop_on_signals(state):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(StopSignal) as raised:
            broken_off()
    assert (raised.value.name, unwound) == ("SIGTERM", [True])


def test_a_second_sigterm_is_harmless(state: TrainingState) -> None:
    with stop_on_signals(state):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert state.stop_message == "ended from outside (SIGTERM)"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_step_that_takes_too_long_is_broken_off(
    state: TrainingState, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the compiling of a model, or a long evaluation."""
    monkeypatch.setattr(stop_signals, "PATIENCE_SECONDS", 0.1)
    with (
        stop_on_signals(state),
        pytest.raises(KeyboardInterrupt, match=re.escape(reason_of(number))),
    ):
        sleep_after(lambda: os.kill(os.getpid(), number))


def test_nothing_comes_after_the_end(state: TrainingState, monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[threading.Timer] = []

    def noted(_seconds: float, wake: Callable[[], None]) -> threading.Timer:
        timers.append(threading.Timer(60.0, wake))
        return timers[-1]

    monkeypatch.setattr(stop_signals, "threading", SimpleNamespace(**vars(threading)))
    monkeypatch.setattr(stop_signals.threading, "Timer", noted)
    with stop_on_signals(state):
        os.kill(os.getpid(), signal.SIGTERM)
    (timer,) = timers
    assert timer.finished.is_set(), "it goes on"
    timer.function()  # as where it was just about to wake the training


def test_the_old_handlers_come_back(state: TrainingState) -> None:
    before = [signal.getsignal(number) for number in ALL]
    with interrupt_on_signals(), stop_on_signals(state):
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(n) for n in ALL] == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_before_the_training_a_signal_is_an_interrupt_that_names_it(number: signal.Signals) -> None:
    with interrupt_on_signals(), pytest.raises(StopSignal, match=re.escape(reason_of(number))):
        os.kill(os.getpid(), number)


def test_a_hangup_that_is_ignored_stays_ignored(state: TrainingState) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupt_on_signals(), stop_on_signals(state):
            os.kill(os.getpid(), signal.SIGHUP)
        assert state.stop_reason is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_the_main_thread_nothing_is_installed(state: TrainingState) -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def run() -> None:
        with stop_on_signals(state):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]
