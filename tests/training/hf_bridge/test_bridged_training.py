"""How a call of `Trainer.train` begins as a training of Temper, and how it ends."""

import json
import os
import signal
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from infrastructure.core.errors import (
    CheckpointError,
    CopyNotConfirmedError,
    NothingLearnedError,
    StorageError,
)
from infrastructure.core.messages import phrase
from infrastructure.models.trainable_state import trainable_state
from infrastructure.monitoring.drawing.metrics_file import read_metrics
from infrastructure.run.checkpoint_paths import by_step, step_of
from infrastructure.run.compatibility import Difference, Verdict
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.checkpoints.save_schedule import SaveSchedule
from infrastructure.training.checkpoints.snapshot import Snapshot
from infrastructure.training.core.state import StopReason, TrainingState
from infrastructure.training.extensions.extension_hooks import Event, Observer
from infrastructure.training.hf_bridge import TemperCallback
from infrastructure.training.hf_bridge.bridged_training import (
    BridgedTraining,
    ResumeRequest,
    _beginning,
    _check_free_space,
    _named_as_accepted,
    _num_examples,
    _refuse_changed,
    _restore_carried,
    _save_timing,
    begin_training,
    hooks_of,
)
from infrastructure.training.hf_bridge.carried_state import CarriedState
from infrastructure.training.hf_bridge.trainer_run import TrainerRun
from infrastructure.training.hf_bridge.trainer_state import TrainerParts
from tests.training.hf_bridge.test_callback import At, run_of, steps_of, summary_of
from tests.training.hf_bridge.tiny_trainer import (
    settings,
    stop_passes,
    tiny_lora,
    train,
    trainer_of,
    weights,
)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"world_size": 2}, r"trainer\.several_processes\(world_size=2\)"),
        ({"deepspeed": "config.json"}, "trainer.deepspeed_or_fsdp"),
        ({"fsdp": ["full_shard"]}, "trainer.deepspeed_or_fsdp"),
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
            with stop_passes():
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
    _, _, lines = train(tmp_path, max_steps=2, seed=5, accept=["seed"])
    assert any("trainer.run_already_finished" in line for line in lines)
    record = json.loads((run_of(tmp_path) / "run.json").read_text())
    assert not record.get("history"), "no step was trained with another seed"


def test_a_run_that_was_changed_is_not_what_its_last_arguments_train(tmp_path: Path) -> None:
    train(tmp_path, max_steps=2)
    train(tmp_path, max_steps=4, accept=["max_steps"])
    changed = r"run\.changed_at_step\(name=max_steps, was=2, step=2, now=4\)"
    refusal = rf"trainer\.run_changed_midway\(.*{changed}.*names=\['max_steps'\]"
    with pytest.raises(CheckpointError, match=refusal):
        train(tmp_path, max_steps=4)
    trainer, _, _ = train(tmp_path, max_steps=4, accept=["max_steps"])
    assert trainer.state.global_step == 4


def test_a_changed_row_is_named_where_the_run_is_refused_and_in_its_report(tmp_path: Path) -> None:
    lines: list[str] = []
    for accept, changed in ((), None), ((), 4), (["data"], 4):
        trainer = trainer_of(tmp_path, max_steps=2 if changed is None else 4)
        if changed is not None:
            trainer.train_dataset.ids[changed][1] += 1
        names = [*accept, *([] if changed is None else ["max_steps"])]
        callback = TemperCallback("tiny", settings(tmp_path), accept=names, say=lines.append)
        trainer.add_callback(callback)
        resumed = callback.resume_from()
        if changed is None or accept:
            trainer.train(resume_from_checkpoint=resumed)
        else:
            with pytest.raises(CheckpointError, match=DIFFERS):
                trainer.train(resume_from_checkpoint=resumed)
            callback.ended_by(RuntimeError())
    report = (run_of(tmp_path) / "report.html").read_text()
    assert "run.rows_differ(name=data, count=1, total=22, first=5)" in report


DIFFERS = r"run\.rows_differ\(name=data, count=1, total=22, first=5\)"


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
    assert summary["backup"] == {"text": phrase("monitoring.checkpoints_not_backed_up")}
    assert summary["loss"] == read_metrics(run_of(tmp_path) / "metrics.jsonl")[-2]["loss"]
    begins = f"trainer.run_line_with_folder(run=tiny, folder={run_of(tmp_path)}, "
    assert any(line.startswith(begins) for line in lines)
    more = f"trainer.model_and_report(directory={run_of(tmp_path)})"
    assert f"trainer.run_ended(run=tiny, status=finished, step=3, more={more})" in lines


class AlsoAt(At):
    """Another one, by another name."""


class Counting(Observer):
    """Counts steps over all sessions, and keeps what each begins with."""

    def __init__(self) -> None:
        self.count = 0
        self.seen: list[tuple[int, int, int | None]] = []

    def step_start(self, state: TrainingState) -> None:
        step = None if state.checkpoint is None else step_of(state.checkpoint)
        self.seen.append((state.step, state.num_examples, step))

    def step_end(self, state: TrainingState) -> None:
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.count = saved["count"]


def lora_beside_trained_positions() -> Any:
    """Weights that train and that no file of an adapter holds."""
    model = tiny_lora()
    model.base_model.model.transformer.wpe.weight.requires_grad_(True)
    return model


def test_a_second_session_has_all_that_the_first_had(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_steps": 4, "save_strategy": "no"}
    whole, _, _ = train(tmp_path / "whole", lora_beside_trained_positions(), **options)

    def ask() -> None:
        (run_of(tmp_path) / "checkpoints" / "save_now").touch()

    counts = Counting(), Counting()
    hooks = [AlsoAt(Event.STEP_START, 0, ask), At(Event.AFTER_BACKWARD, 1, stop), counts[0]]
    train(tmp_path, lora_beside_trained_positions(), hooks=hooks, **options)
    first = summary_of(tmp_path)
    store = CheckpointManager(run_of(tmp_path) / "checkpoints").store
    versions = {step: store.read(path.stem) for step, path in by_step(store).items()}
    assert {step: version.kind for step, version in versions.items()} == {
        1: "manual",
        2: "stopped",
    }
    assert "identity" not in versions[2].values, "another script of these settings is another run"
    again, _, _ = train(tmp_path, lora_beside_trained_positions(), hooks=[counts[1]], **options)
    assert torch.equal(weights(again.model), weights(whole.model))
    assert [one.count for one in counts] == [2, 4]
    assert counts[0].seen == [(0, 0, 0), (1, 4, 1)]
    assert [seen[:2] for seen in counts[1].seen] == [(2, 8), (3, 12)]
    assert counts[1].seen[0][2] == 2
    summary = summary_of(tmp_path)
    assert summary["went_on"] == [{"step": 2, "was_killed": False}]
    assert summary["seconds"] > first["seconds"] > 0


def test_versions_come_by_the_configuration(tmp_path: Path) -> None:
    training = {
        **{"checkpoint_seconds": 33, "deadline": "2h"},
    }
    run = TrainerRun("tiny", settings(tmp_path, training=training), print)
    run.copies.seconds_to_confirm = lambda: 12.5  # type: ignore[method-assign]
    state = TrainingState(torch.nn.Linear(1, 1), step=4)
    announced: list[tuple[Event, Path | None]] = []
    hooks = SimpleNamespace(fire=lambda event, state: announced.append((event, state.checkpoint)))
    snapshots: Any = SimpleNamespace(state=state, hooks=hooks, take=None)
    saves = _save_timing(run, snapshots, Path("first"))
    schedule = saves.schedule
    assert (schedule.interval_seconds, schedule.deadline_seconds) == (33, 7200)
    assert (schedule.request, schedule.reserve()) == (
        run.directory / "checkpoints" / "save_now",
        12.5,
    )
    schedule.interval_seconds = 0
    assert schedule.kind_due(4) is None, "the training resumes from this step"
    saves.announce(Path("version"))
    assert announced == [(Event.CHECKPOINT_SAVED, Path("version"))]
    assert (saves.first, saves.due) == (Path("first"), None)
    assert _save_timing(run, snapshots, None).due == "scheduled", "there is something to go back to"


class Ending:
    """What a training that ends calls, in order."""

    def __init__(self, folder: Path, **backup: Any) -> None:
        self.calls: list[object] = []
        note = self.calls.append
        self.run: Any = SimpleNamespace(
            name="tiny",
            config=settings(folder, backup=backup),
            is_whole=False,
            report=lambda line: None,
            how_to_resume=lambda: "run it again",
            versions=SimpleNamespace(close=lambda: note("versions closed")),
            copies=SimpleNamespace(has_place=False, wait=note, close=lambda: note("copies closed")),
        )
        self.state = TrainingState(torch.nn.Linear(1, 1), step=4)
        self.state.total_steps = 9
        hooks: Any = SimpleNamespace(fire_to_all=lambda event, state: note((event, state.error)))
        schedule = SaveSchedule(None, 1000, clock=lambda: 0.0)
        saves: Any = SimpleNamespace(schedule=schedule)
        events: Any = SimpleNamespace(end=lambda: note("saved"))
        stack = ExitStack()
        stack.callback(note, "free")
        parts: Any = None
        self.training = BridgedTraining(self.run, parts, self.state, hooks, saves, events, stack)
        self.training._close = self.close  # type: ignore[method-assign]

    def close(self, **given: object) -> str:
        self.calls.append(given)
        return "finished" if given.get("is_finished") else "stopped"

    def finishes(self, step: int, lines: list[str], *, is_whole: bool, has_place: bool) -> None:
        """Let the training be at `step` of 9, with all that its end needs."""
        run, note = self.run, self.calls.append
        run.is_whole, run.report, run.directory = is_whole, lines.append, run.config.output_dir
        run.directory = Path(run.directory).parent
        run.files = SimpleNamespace(final=run.directory)
        run.save_model, run.complete = note, lambda: note("complete")
        run.copies.has_place, run.copies_line = has_place, lambda: "copies"
        self.state.step = step
        self.training.hooks.fire = lambda event, state: note(event)  # type: ignore[method-assign]
        progress = SimpleNamespace(global_step=step, max_steps=9)
        self.training.parts = SimpleNamespace(model="the model", state=progress)  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("reason", "seconds"), [(StopReason.DEADLINE, 1000.0), (StopReason.SIGNAL, 5.0)]
)
def test_who_is_stopped_waits_for_copies_as_long_as_there_is_time(
    tmp_path: Path, reason: StopReason, seconds: float
) -> None:
    ending = Ending(tmp_path, emergency_seconds=5.0, finish_seconds=77.0)
    ending.state.interrupt("why", reason)
    assert ending.training.end(lambda: ending.calls.append("no loss")) is True
    assert ending.calls == [
        *("saved", "versions closed", "no loss", seconds, {"is_finished": False}),
        *("copies closed", "no loss", "copies closed", "free"),
    ]


@pytest.mark.parametrize("is_refused", [False, True])
def test_an_error_waits_for_the_version_that_is_being_written(
    tmp_path: Path, is_refused: bool
) -> None:
    ending, error = Ending(tmp_path), RuntimeError("broken")

    def refuse() -> None:
        raise StorageError("the disk is full")

    if is_refused:
        ending.run.versions.close = refuse
    ending.training.break_off(error)
    closed = [] if is_refused else ["versions closed", {"error": error}]
    assert ending.calls == [(Event.ERROR, error), *closed, "copies closed", "free"]


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize(("step", "reason"), [(9, None), (4, "trainer.ended_early()")])
@pytest.mark.parametrize("has_place", [False, True])
def test_a_training_that_ends_has_its_model_its_lines_and_its_copies(
    tmp_path: Path, is_whole: bool, step: int, reason: str | None, has_place: bool
) -> None:
    ending, lines = Ending(tmp_path, emergency_seconds=5.0), list[str]()
    ending.finishes(step, lines, is_whole=is_whole, has_place=has_place)
    assert ending.training.end(lambda: ending.calls.append("no loss")) is False
    assert ending.calls == [
        *("saved", "versions closed", "no loss", Event.PHASE_END, "the model"),
        *({"is_finished": True}, "complete", "no loss", "copies closed", "free"),
    ]
    assert ending.state.stop_message == reason
    more = "" if is_whole else f"trainer.model_and_report(directory={tmp_path})"
    ended = f"trainer.run_ended(run=tiny, status=finished, step={step}, more={more})"
    assert lines == [ended, *["copies"] * (has_place and not is_whole)]


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_stopped_training_shows_how_it_resumes_and_what_is_copied(
    tmp_path: Path, is_whole: bool
) -> None:
    ending, lines = Ending(tmp_path), list[str]()
    ending.finishes(4, lines, is_whole=is_whole, has_place=True)
    ending.state.interrupt("why", StopReason.SIGNAL)
    assert ending.training.end(lambda: None) is True
    more = "trainer.run_again_to_resume(how=run it again)"
    ended = f"trainer.run_ended(run=tiny, status=stopped, step=4, more={more})"
    assert lines == [ended, "copies"], "the command has no closing lines for a stop"


def test_a_training_that_learned_nothing_is_an_error_and_keeps_its_model(tmp_path: Path) -> None:
    ending = Ending(tmp_path)
    ending.finishes(9, [], is_whole=False, has_place=False)
    ending.state.stop("no weight changes", StopReason.NOTHING_LEARNED)
    with pytest.raises(NothingLearnedError, match="no weight changes") as raised:
        ending.training.end(lambda: None)
    assert ending.state.error is raised.value
    assert "the model" in ending.calls
    assert ending.calls[-5:] == [
        *("versions closed", {"error": raised.value}, "copies closed", "free", "copies closed")
    ]


def test_a_copy_that_is_not_confirmed_is_no_error_of_the_training(tmp_path: Path) -> None:
    ending = Ending(tmp_path)
    ending.finishes(9, [], is_whole=False, has_place=True)

    def refuse() -> None:
        raise CopyNotConfirmedError("it is away")

    ending.run.complete = refuse
    with pytest.raises(CopyNotConfirmedError):
        ending.training.end(lambda: None)
    assert ending.state.error is None
    assert ending.calls[-2:] == ["copies closed", "free"]


@pytest.mark.parametrize(
    ("is_updating", "step", "kept_step", "may"),
    [(False, 4, 4, True), (False, 4, 5, True), (False, 4, 3, False), (True, 4, 4, False)],
)
def test_a_step_may_be_broken_off_where_none_is_lost(
    is_updating: bool, step: int, kept_step: int, may: bool
) -> None:
    training: Any = SimpleNamespace(
        events=SimpleNamespace(is_updating=is_updating),
        parts=SimpleNamespace(state=SimpleNamespace(global_step=step)),
        saves=SimpleNamespace(kept_step=kept_step),
    )
    assert BridgedTraining.may_break_off.fget(training) is may  # type: ignore[attr-defined]


def test_the_space_that_is_needed_is_that_of_weights_and_of_a_known_optimizer() -> None:
    model = torch.nn.Linear(3, 2)  # 8 numbers
    model.bias.requires_grad_(False)
    optimizer = torch.optim.AdamW([model.weight])
    seen: list[tuple[int, int]] = []
    run: Any = SimpleNamespace(
        copies=SimpleNamespace(check_free_space=lambda size, steps: seen.append((size, steps)))
    )
    parts: Any = SimpleNamespace(model=model, optimizer=optimizer)
    _check_free_space(run, parts, 7)
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    _check_free_space(run, parts, 7)
    kept = sum(tensor.nbytes for tensor in trainable_state(model).values())
    assert seen == [(kept, 7), (kept + 2 * 6 * 4 + 4, 7)]  # two moments and the step


@pytest.mark.parametrize(
    ("is_whole", "place", "line"),
    [
        (True, None, None),
        (True, "disk", "trainer.run_line(run=tiny, copies=trainer.copies_go_to(place=disk))"),
        (False, None, "copies=not backed up)"),
        (False, "disk", "copies=trainer.copies_go_to(place=disk))"),
    ],
)
def test_a_beginning_names_the_run_and_where_its_copies_go(
    is_whole: bool, place: str | None, line: str | None
) -> None:
    run: Any = SimpleNamespace(
        **{"name": "tiny", "directory": "runs/tiny", "is_whole": is_whole, "shown_place": place},
        copies_line=lambda: "not backed up",
    )
    if not is_whole:
        line = f"trainer.run_line_with_folder(run=tiny, folder=runs/tiny, {line}"
    assert _beginning(run) == line


def test_changes_midway_are_all_named_with_those_that_are_accepted() -> None:
    run: Any = SimpleNamespace(name="tiny")
    history: Any = [
        {"step": step, "changes": [{"name": name, "was": 1, "is": 2, "effect": effect}]}
        for step, name, effect in (
            (2, "seed", Verdict.CHANGES_THE_RESULT),
            (3, "data", Verdict.CHANGES_THE_RESULT),
            (4, "torch", Verdict.ROUNDS_OTHERWISE),
            (5, "data", Verdict.CHANGES_THE_RESULT),
        )
    ]
    with pytest.raises(CheckpointError) as raised:
        _refuse_changed(run, history, ["z", "seed"])
    words = "; ".join(f"run.changed_at_step(name=data, was=1, step={n}, now=2)" for n in (3, 5))
    about = f"run=tiny, changes={words}, names=['data', 'seed', 'z']"
    assert str(raised.value) == f"trainer.run_changed_midway({about})"
    _refuse_changed(run, history, ["data", "seed"])


def test_a_difference_has_the_name_that_accepts_it_and_keeps_its_words() -> None:
    run: Any = SimpleNamespace(name_to_accept=lambda name: name.replace("max_steps", "epochs"))
    one = Difference("max_steps", 2, 4, Verdict.CHANGES_THE_RESULT)
    named = _named_as_accepted(one, run)
    assert named == replace(one, name="epochs", text="max_steps: was 2, is 4")
    other = replace(one, name="seed")
    assert _named_as_accepted(other, run) is other


@pytest.mark.parametrize(
    ("data", "count"),
    [*((one, None) for one in (None, {}, {"num_examples": None}, "x")), ({"num_examples": 22}, 22)],
)
def test_the_number_of_rows_is_known_where_there_is_one(data: Any, count: int | None) -> None:
    facts: Any = {"parts": {"data": data} if data is not None else {}}
    assert _num_examples(facts) == count


@pytest.mark.parametrize("awaits_evaluation", [False, True])
def test_what_no_version_holds_is_no_loss_before_the_first_step(awaits_evaluation: bool) -> None:
    lines: list[str] = []
    run: Any = SimpleNamespace(name="tiny", report=lines.append)
    trainer: Any = type("Trainer", (), {})()
    trainer.callback_handler = SimpleNamespace(callbacks=[SyncRefModelCallback()])
    encoded = torch.frombuffer(bytearray(b'{"stateful_callbacks": {}}'), dtype=torch.uint8)
    kept = {"attributes": {}, "seconds": 40.0, "awaits_evaluation": awaits_evaluation}
    snapshot = Snapshot({"trainer": {"trainer_state.json": encoded}}, {"carried": kept, "step": 0})
    carried = CarriedState(trainer, None, torch.device("cpu"))
    _restore_carried(run, trainer, carried, snapshot)
    assert carried.seconds >= 40.0
    assert lines == ["trainer.evaluation_interrupted(step=0)"] * awaits_evaluation
    snapshot.values["step"] = 3
    lost = "trainer.moved_reference_model() (SyncRefModelCallback)"
    with pytest.raises(CheckpointError) as raised:
        _restore_carried(run, trainer, carried, snapshot)
    assert str(raised.value) == f"trainer.cannot_resume_lost_state(run=tiny, lost={lost})"


LOGGED = [
    {"step": 6, "eval_loss": 1.0},
    {"step": 9, "loss": 0.5},
    {"step": 9, "eval_loss": 3.0, "eval_b_loss": 7.0, "eval_runtime": 2.0},
]


@pytest.mark.parametrize(
    ("loads_best", "best", "step", "logged", "expected"),
    [
        (False, 6, 9, LOGGED, {"after": {"eval_loss": 3.0}}),
        (True, 6, 9, LOGGED, {"after": {"eval_loss": 1.0}, "final_step": 6}),
        (True, 9, 9, LOGGED, {"after": {"eval_loss": 3.0}}),
        (True, None, 9, LOGGED, {"after": {"eval_loss": 3.0}}),  # before TRL kept its step
        (True, 6, 9, [], {"after": None, "final_step": 6}),
        (False, None, 8, LOGGED, {"after": None}),
    ],
)
def test_what_was_measured_is_of_the_weights_that_are_kept(
    loads_best: bool, best: int | None, step: int, logged: Any, expected: dict[str, Any]
) -> None:
    progress = SimpleNamespace(
        best_model_checkpoint="folder", best_global_step=best, log_history=logged
    )
    args = SimpleNamespace(load_best_model_at_end=loads_best)
    training: Any = SimpleNamespace(
        parts=SimpleNamespace(state=progress, args=args), state=SimpleNamespace(step=step)
    )
    assert BridgedTraining._measured(training) == expected
    progress.best_model_checkpoint = None  # nothing was the best yet
    assert "final_step" not in BridgedTraining._measured(training)


@pytest.mark.parametrize("has_place", [False, True])
@pytest.mark.parametrize("draws_bars", [False, True])
def test_each_observer_of_a_run_is_there_once_and_in_order(
    tmp_path: Path, has_place: bool, draws_bars: bool
) -> None:
    place = {"backup": {"place": str(tmp_path / "place")}} if has_place else {}
    sinks = {"metrics_sinks": ["console", "jsonl"]}
    run = TrainerRun("tiny", settings(tmp_path, training=sinks, **place), print)
    args = SimpleNamespace(bf16=False, fp16=False, disable_tqdm=not draws_bars)
    parts: Any = SimpleNamespace(args=args, device=torch.device("cpu"))
    mine = Counting()
    hooks = hooks_of(run, parts, [mine]).hooks
    names = [type(hook).__name__ for hook in hooks]
    assert hooks[0] is mine
    expected = ["MetricsObserver", *["ProgressObserver"] * (not draws_bars), "CheckpointLines"]
    expected += ["ErrorsObserver", "ReportObserver", *["CopiesObserver"] * has_place]
    assert names[-len(expected) :] == expected
    assert names.count("Standstill") == 1
    (metrics,) = (hook for hook in hooks if type(hook).__name__ == "MetricsObserver")
    assert [type(sink).__name__ for sink in metrics.metrics_logger.sinks] == ["JsonlSink"]  # type: ignore[attr-defined]
