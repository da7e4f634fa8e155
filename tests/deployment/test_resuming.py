"""The same command again: goes on, says what it does, and never trains twice by accident."""

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from infrastructure.backup.format.store import Store
from infrastructure.commands.resume import resume
from infrastructure.commands.train import train
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import GivenValue, Layer, Source
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.checksums import write_record
from infrastructure.core.errors import CheckpointError, InputError, StorageError
from infrastructure.data.readers.sources import data_files_hash
from infrastructure.deployment import resuming
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.deployment.resuming import (
    RunToResume,
    as_begun,
    commit_of_base,
    describe_differences,
    explain,
    find_to_resume,
    refuse_changed,
)
from infrastructure.monitoring.records.run_list import NoSuchRunError
from infrastructure.run.compatibility import Difference, Verdict
from infrastructure.run.directory import RunDirectory
from infrastructure.run.finalize import read_summary
from infrastructure.run.lock import only_trainer_of
from infrastructure.run.trained_rows import trained_rows
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.trainer_factory import TrainerFactory
from tests.deployment.runs import (
    deploy,
    end,
    losses,
    newest_step,
    runs_of,
    small_config,
    start_temper,
    when_saved,
    write_rows,
    write_settings,
)
from tests.slow import slow, slow_but

OBSERVERS = TrainingDeployment._observers


class StopAfter(Observer):
    """Ends the training as a deadline would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def step_end(self, state: TrainingState) -> None:
        if state.step == self.step:
            state.interrupt("a test is over")


def stop_after(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setattr(
        TrainingDeployment,
        "_observers",
        lambda self, run, copies: [*OBSERVERS(self, run, copies), StopAfter(step)],
    )


def short_config(folder: Path, **training: Any) -> DeploymentConfig:
    """Of two more steps than `stopped` has made."""
    return small_config(folder, **{"max_steps": 6, **training})


def resumed_from(run: Path, step: int) -> str:
    return f"deployment.resuming_from_step(run_id={run.name}, step={step},"


@pytest.fixture(scope="module")
def stopped_and_kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run that was stopped at step 4, and a copy of the folder with it and its rows."""
    folder = tmp_path_factory.mktemp("stopped") / "folder"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 4)
        run, _ = deploy(short_config(folder))
    assert newest_step(run) == 4
    return run, Path(shutil.copytree(folder, folder.with_name("kept")))


@pytest.fixture
def stopped(stopped_and_kept: tuple[Path, Path]) -> Path:
    """A run that was stopped at step 4, as it was then."""
    run, kept = stopped_and_kept
    folder = run.parents[1]
    shutil.rmtree(folder)
    shutil.copytree(kept, folder)  # to the same place: a record has whole paths
    return run


@pytest.fixture
def folder(stopped: Path) -> Path:
    """The folder with `runs`, and with the rows."""
    return stopped.parents[1]


def test_the_same_command_goes_on_to_the_same_numbers(stopped: Path, folder: Path) -> None:
    named = short_config(folder)
    named.run_name = "another try"
    again, lines = deploy(named)
    assert again == stopped
    assert f"deployment.run_name_without_effect(run_id={stopped.name}, name=another try)" in lines
    assert resumed_from(stopped, 4) in "\n".join(lines)
    [starts] = [line for line in lines if line.startswith("deployment.training_starts(")]
    assert re.search(r"steps=\d+ more steps, to \d+\)", starts)
    fresh = short_config(folder)
    fresh.new_run = True
    fresh.run_name = "another try"
    whole, _ = deploy(fresh)
    assert "-another-try-" in whole.name
    assert "<title>another try · Temper</title>" in (whole / "report.html").read_text()
    assert losses(again) == losses(whole)
    assert {*runs_of(folder)} == {stopped, whole}  # maybe of one second, and then by name


def test_a_run_goes_on_with_the_library_that_it_began_with(
    stopped: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is installed by now, and `auto` would choose."""
    chosen: list[object] = []

    def for_run(self: TrainerFactory, config: object, began_with: object, **_: object) -> None:
        chosen.append(began_with)
        raise ValueError("far enough")

    monkeypatch.setattr(TrainerFactory, "for_run", for_run)
    for _ in range(2):
        with pytest.raises(ValueError, match="far enough"):
            deploy(short_config(folder))
        monkeypatch.setattr(resuming, "settings_now", lambda *_: {"model.backend": "unsloth"})
    assert chosen == ["transformers", "unsloth"]


def test_what_does_not_change_the_result_may_be_given_anew(stopped: Path, folder: Path) -> None:
    config = short_config(folder, checkpoint_frequency=50, log_frequency=2)
    config.price_per_hour = "3 EUR"
    again, _ = deploy(config)
    assert again == stopped
    assert read_summary(RunDirectory(again))["cost"]["price_per_hour"] == "3 EUR"
    assert [step for step, _ in losses(again)][-2:] == [4, 6]  # of every second step


def test_another_training_is_another_run(stopped: Path, folder: Path) -> None:
    other, _ = deploy(small_config(folder, learning_rate=1e-4, max_steps=1))
    assert other != stopped
    assert newest_step(stopped) == 4


def test_a_finished_run_is_not_trained_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = deploy(small_config(tmp_path, max_steps=2))
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert train(small_config(tmp_path, max_steps=2)) == 0
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    out = capsys.readouterr().out
    assert f"deployment.run_finished_before(run_id={run.name}, model={run / 'final'}" in out
    assert "deployment.new_run_trains_again()" in out
    assert f"run.files_head(run={run})" in out
    assert "deployment.training_starts" not in out


def test_a_finished_run_on_other_rows_is_not_the_answer(tmp_path: Path) -> None:
    run, _ = deploy(small_config(tmp_path, max_steps=1))
    write_rows(tmp_path / "rows.jsonl", 300, 324)
    other, lines = deploy(small_config(tmp_path, max_steps=1))
    assert other != run
    assert f"deployment.data_changed_after_run(run_id={run.name})" in lines


def test_other_rows_stop_an_unfinished_run_until_they_are_accepted(
    stopped: Path, folder: Path
) -> None:
    write_rows(folder / "rows.jsonl", 300, 340)
    lines: list[str] = []
    with pytest.raises(CheckpointError, match="data: was") as raised:
        TrainingDeployment(short_config(folder), say=lines.append).run()
    assert not any("deployment.resuming_from_step" in line for line in lines), "it does not"
    assert "run.accept_the_change(accept_option=accept=data)" in str(raised.value)
    assert "run.start_new_run_by_command()" in str(raised.value)
    again, lines = deploy(short_config(folder), accept=["data"])
    assert again == stopped
    assert "data: deployment.epoch_restarts_new_data()" in lines
    record = json.loads((stopped / "run.json").read_text())
    (entry,) = record["history"]
    assert entry["step"] == 4
    assert entry["changes"][0]["name"] == "data"
    assert entry["changes"][0]["was"] != entry["changes"][0]["is"]
    assert entry["data"]["fingerprint"] != record["data"]["fingerprint"]
    assert entry["data"]["num_train"] > record["data"]["num_train"]
    known = trained_rows(RunDirectory(stopped))
    assert known is not None
    assert len(known.hashes) == entry["data"]["num_train"] + record["data"]["num_train"]
    assert entry["when"]
    page = (stopped / "report.html").read_text()
    assert "Changed during the run" in page
    assert entry["changes"][0]["is"] in page


@slow
def test_an_accepted_setting_goes_on_with_the_run_that_had_another(
    stopped: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = short_config(folder, learning_rate=1e-4)
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        again, lines = deploy(changed, accept=["learning_rate"])
    assert again == stopped
    assert any(line.startswith("accepted: learning_rate: was 0.006, is 0.0001") for line in lines)
    record = json.loads((stopped / "run.json").read_text())
    assert record["config"]["training.learning_rate"]["value"] == "auto"
    assert deploy(changed, accept=["learning_rate"])[0] == stopped
    assert deploy(changed)[0] != stopped  # which began with another one
    assert resume(f"{stopped.name}@5", str(stopped.parent)) == 0
    assert resume(f"{stopped.name}@3", str(stopped.parent)) == 0  # as it was then


def test_a_run_is_exported_with_the_settings_of_its_checkpoint(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, now = RunDirectory(stopped), {"training.learning_rate": 1e-4, "training.of_a_newer": 3}
    monkeypatch.setattr(resuming, "settings_now", lambda run, began_with: {**began_with, **now})
    config = resuming.configuration_of(run, None)
    assert config.training.learning_rate == 1e-4
    assert config.training.num_epochs == run.read_configuration().training.num_epochs


def test_a_run_without_a_checkpoint_begins_again_in_its_directory(tmp_path: Path) -> None:
    run, _ = deploy(small_config(tmp_path, max_steps=2))
    for name in ("checkpoints", "final"):
        shutil.rmtree(run / name)
    (run / "summary.json").write_text('{"status": "running"}')
    again, lines = deploy(small_config(tmp_path, max_steps=2))
    assert again == run
    assert f"deployment.run_starts_over(run_id={run.name})" in lines
    assert [step for step, _ in losses(run)] == [1, 2]


def test_a_run_that_is_trained_right_now_is_not_taken(stopped: Path, folder: Path) -> None:
    lines: list[str] = []
    with only_trainer_of(stopped):
        with pytest.raises(ValueError, match=r"run\.run_is_being_trained.*trainer=process "):
            TrainingDeployment(short_config(folder), say=lines.append).run()
        assert [line for line in lines if "deployment.resuming_from_step" in line] == []
        other, _ = deploy(small_config(folder, seed=1, max_steps=1))
    assert other != stopped


def test_a_damaged_run_is_passed_over(
    stopped: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(stopped, broken := stopped.with_name("20990101-000000-broken"))
    shutil.rmtree(broken / "checkpoints")  # nothing is left that it could be brought back from
    (broken / "run.json").write_text("{")
    assert deploy(short_config(folder))[0] == stopped
    assert "run.unreadable_run_skipped" in caplog.text


def test_a_run_that_was_moved_with_its_data_goes_on(
    stopped: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    there = tmp_path_factory.mktemp("another-machine")
    shutil.move(folder / "runs", there / "runs")
    shutil.move(folder / "rows.jsonl", there / "rows.jsonl")
    again, _ = deploy(short_config(there))
    assert again == there / "runs" / stopped.name


def test_data_that_is_gone_is_not_taken_for_other_data(tmp_path: Path) -> None:
    """Nothing is known of it, so a finished run stays the result of the same command."""
    config = small_config(tmp_path)
    run = RunDirectory(tmp_path / "runs/one")
    run.path.mkdir(parents=True)
    files = data_files_hash(config.data)
    assert files is not None

    def is_other(data: object) -> bool:
        run.run_file.write_text(json.dumps({"run_id": "one", "configuration": {}, "data": data}))
        return resuming.has_other_data(run, config)

    assert not is_other({"files_sha256": files})
    assert is_other({"files_sha256": "of other rows"})
    assert not is_other({"files_sha256": None})
    assert not is_other({})
    assert not is_other(None)
    (tmp_path / "rows.jsonl").unlink()
    assert not is_other({"files_sha256": files})


def test_an_unknown_name_to_accept_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"run\.unknown_accepted_name\(name=dataa, .*meant=data\)"):
        TrainingDeployment(small_config(tmp_path), accept=["dataa"])


def test_files_are_known_by_their_content(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    first = data_files_hash(config.data)
    (tmp_path / "rows.jsonl").touch()
    assert data_files_hash(config.data) == first
    write_rows(tmp_path / "rows.jsonl", 5, 50)
    assert data_files_hash(config.data) != first
    config.data.path = "owner/name"
    assert data_files_hash(config.data) is None


@pytest.mark.parametrize(
    ("number", "code"),
    slow_but(
        [(signal.SIGKILL, -9)],
        [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)],
    ),
)
def test_a_process_ended_by_a_signal_is_followed_by_the_same_command(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    settings: dict[str, Any] = {"num_epochs": 400, "keep_checkpoints": 2}
    write_settings(tmp_path, **settings)
    process = start_temper("train", folder=tmp_path)
    run = when_saved(tmp_path, 3, process)
    assert end(process, number)[0] == code
    reached = newest_step(run)
    write_settings(tmp_path, **settings, deadline=1e-3)
    process = start_temper("train", folder=tmp_path)
    out, err = process.communicate(timeout=120)
    assert resumed_from(run, reached) in out, err
    assert runs_of(tmp_path) == [run]


@pytest.mark.parametrize(
    ("revision", "commit"), [(None, "c0ffee"), ("main", None), ("c0ffee", None)]
)
def test_a_hub_model_goes_on_at_the_commit_that_it_began_with(
    tmp_path: Path, revision: str | None, commit: str | None
) -> None:
    run = RunDirectory(tmp_path)
    began_with = DeploymentConfig(model={"name": "owner/name"})
    record = {"configuration": began_with.to_dict(), "model": {"revision": "c0ffee"}}
    run.run_file.write_text(json.dumps(record))
    now = DeploymentConfig(model={"name": "owner/name", "revision": revision})
    assert commit_of_base(run, now) == commit


def test_what_an_accepted_change_means_is_reported() -> None:
    assert explain(["data", "learning_rate"]) == ["data: deployment.epoch_restarts_new_data()"]
    assert explain(["optimizer", "seed"]) == [
        "seed: deployment.epoch_order_changes()",
        "optimizer: deployment.new_optimizer_no_state()",
    ]


def test_a_new_run_beside_an_unfinished_one_names_it(
    stopped: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another learning rate is another training, and may be a slip."""
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        fresh, lines = deploy(short_config(folder, learning_rate=0.25))
    [named] = [line for line in lines if "deployment.similar_run_unfinished" in line]
    assert fresh != stopped
    assert f"(run_id={stopped.name}, settings=learning_rate (auto there, 0.25 here)" in named
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        other = short_config(folder, learning_rate=0.5)
        other.data.path = str(write_rows(folder / "other.jsonl"))
        _, lines = deploy(other)
    assert not [line for line in lines if "deployment.similar_run_unfinished" in line]
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        _, lines = deploy(short_config(folder, learning_rate=0.25, mixed_precision="fp32"))
    [named] = [line for line in lines if "deployment.similar_run_unfinished" in line]
    assert f"(run_id={fresh.name}, settings=mixed_precision (true there, fp32 here)" in named


def test_what_is_wrong_with_the_device_comes_before_a_run_that_goes_on(
    stopped: Path, folder: Path
) -> None:
    config, lines = short_config(folder), list[str]()
    config.device = "cuda:77"
    with pytest.raises(ValueError, match="cuda:77"):
        TrainingDeployment(config, say=lines.append).run()
    assert lines == []


def test_a_finished_run_is_refused_where_what_decides_its_result_is_another(tmp_path: Path) -> None:
    run, was = RunDirectory(tmp_path), DeploymentConfig(batch_size=4)
    refuse_changed(run, was, DeploymentConfig(batch_size=4, log_level="DEBUG"))
    with pytest.raises(CheckpointError) as raised:
        refuse_changed(run, was, DeploymentConfig(**{"batch_size": 8, "training.seed": 3}))
    refusal = str(raised.value)
    assert "deployment.finished_run_settings_changed(" in refusal
    assert "names=seed,batch_size" in refusal or "names=batch_size,seed" in refusal


@pytest.mark.parametrize("accept", [[], ["learning_rate"]])
@pytest.mark.parametrize("version", ["", "@3"])
@pytest.mark.parametrize("is_finished", [True, False])
def test_a_finished_run_goes_on_with_other_settings_only_where_they_are_accepted(
    tmp_path: Path, is_finished: bool, version: str, accept: list[str]
) -> None:
    run = RunDirectory(tmp_path / "runs/20260101-000000-one-0000")
    run.final.mkdir(parents=True)
    write_record(run.run_file, {"configuration": DeploymentConfig(learning_rate=0.1).to_dict()})
    write_record(run.summary_file, {"status": "finished" if is_finished else "stopped"})
    store = Store(run.checkpoints)
    store.prepare()
    name = store.commit({}, {}, step=3)
    change = GivenValue("training.learning_rate", 0.2, Source(Layer.FLAG, "--learning-rate"))

    def find() -> RunToResume:
        given = run.run_id + version
        return find_to_resume(given, str(tmp_path / "runs"), [change], accept, lambda line: None)

    if is_finished and not version and not accept:
        with pytest.raises(CheckpointError, match=r"finished_run_settings_changed"):
            find()
        return
    found = find()
    assert found.run.path == run.path
    assert found.checkpoint == (store.manifest_path(name) if version else None)
    assert found.config.training.learning_rate == 0.2


def test_a_run_restored_from_its_backup_uses_the_destination_given_now(
    stopped: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored: list[tuple[object, ...]] = []

    def restore(name: str, folder: Path, options: BackupConfig, show: object) -> object:
        restored.append((name, folder, options.place))
        return RunDirectory(stopped), None

    monkeypatch.setattr(resuming, "_from_place", restore)
    source = Source(Layer.FLAG, "--place")
    place = GivenValue("backup.place", str(folder / "place"), source)
    before = GivenValue("backup.place", str(folder / "other"), source)
    price = GivenValue("price_per_hour", "2 EUR", source)
    empty = str(folder / "empty")
    with pytest.raises(NoSuchRunError):
        find_to_resume("gone", empty, [price], [], print)
    found = find_to_resume("gone", empty, [before, price], [], print, place)
    assert restored == [("gone", Path(empty), str(folder / "place"))]
    assert (found.run.path, found.checkpoint) == (stopped, None)
    assert found.config.backup.place == str(folder / "place")
    assert found.config.price_per_hour == "2 EUR"


def test_a_run_keeps_the_defaults_of_the_version_in_which_it_began(tmp_path: Path) -> None:
    run, config = RunDirectory(tmp_path), DeploymentConfig()
    record = config.to_dict()
    run.run_file.write_text(json.dumps({"configuration": record}))
    assert as_begun(run, config) is config
    record["values"]["data"]["over_length"] = "quarantine"
    run.run_file.write_text(json.dumps({"configuration": record}))
    began = as_begun(run, config)
    assert began.data.over_length == "quarantine"
    assert began.source("data.over_length") == resuming.AS_IT_BEGAN
    run.run_file.unlink()
    assert as_begun(run, config) is config


def test_only_what_changes_the_result_is_explained() -> None:
    one = Difference("data", "a", "b", Verdict.CHANGES_THE_RESULT)
    other = Difference("seed", "1", "2", Verdict.HARMLESS)
    lines = describe_differences([one, other], 7)
    assert explain(["data"])[0] in lines
    assert explain(["seed"])[0] not in lines


@pytest.mark.parametrize(
    ("recorded", "now", "is_other"),
    [
        ({"files_sha256": "a"}, "a", False),
        ({"files_sha256": "a"}, "b", True),
        ({"files_sha256": "a"}, None, False),  # of the Hub
        ({"files_sha256": None}, "b", False),
        ({}, "b", False),
        (None, "b", False),
    ],
)
def test_other_data_is_other_files(
    recorded: dict[str, Any] | None,
    now: str | None,
    is_other: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, config = RunDirectory(tmp_path), DeploymentConfig()
    write_record(run.run_file, {"configuration": config.to_dict(), "data": recorded})
    monkeypatch.setattr(resuming, "data_files_hash", lambda data: now)
    assert resuming.has_other_data(run, config) is is_other


def test_settings_that_would_have_changed_a_finished_result_are_all_named(tmp_path: Path) -> None:
    was = DeploymentConfig(training={"max_steps": 4, "learning_rate": 0.5, "log_frequency": 3})
    now = DeploymentConfig(training={"max_steps": 6, "learning_rate": 0.25, "log_frequency": 1})
    run = RunDirectory(tmp_path / "mine")
    refuse_changed(run, was, was)
    with pytest.raises(CheckpointError) as caught:
        refuse_changed(run, was, now)
    text = str(caught.value)
    changes = ["setting=learning_rate, before=0.5, now=0.25", "setting=max_steps, before=4, now=6"]
    shown = sorted(re.findall(r"setting_was_and_is\((.*?)\)", text))
    assert shown == changes
    assert text.startswith("deployment.finished_run_settings_changed(run_id=mine, changed=")
    assert {*text.rpartition("names=")[2].rstrip(")").split(",")} == {"learning_rate", "max_steps"}


@pytest.mark.parametrize("version", [None, "7"])
@pytest.mark.parametrize(
    ("name", "folder", "wanted"),
    [
        ("mine", "runs", "mine"),
        (None, "runs", None),
        ("elsewhere/mine", "elsewhere", "elsewhere/mine"),
        ("elsewhere/mine/final", "elsewhere", "elsewhere/mine/final"),
    ],
)
def test_a_run_from_a_backup_comes_to_where_it_was_named(
    name: str | None,
    folder: str,
    wanted: str | None,
    version: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if version is not None and name is None:
        return
    requested: list[object] = []
    run = RunDirectory(tmp_path)
    options = BackupConfig(place=str(tmp_path / "place"))

    def named(place: Any, run_name: str | None) -> str:
        requested.append(run_name)
        return "full-id"

    def restore(*given: object) -> Any:
        requested.append(given)
        return run, tmp_path / "a-version"

    monkeypatch.setattr(resuming, "named_run", named)
    monkeypatch.setattr(resuming, "step_at_place", lambda place, run_id, of: int(of) + 1)
    monkeypatch.setattr(resuming, "restore_run", restore)
    lines: list[str] = []
    given = name if version is None else f"{name}@{version}"
    found = resuming._from_place(given, Path("runs"), options, lines.append)
    assert found == (run, None if version is None else tmp_path / "a-version")
    step = None if version is None else 8
    assert requested == [wanted, ("full-id", options, Path(folder), step, lines.append)]
    restoring = f"run_id=full-id, output_dir={folder}, url={tmp_path / 'place'}"
    assert lines == [f"deployment.restoring_run_from_backup({restoring})"]


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        (
            "mine",
            InputError("none"),
            "deployment.named_run_not_found(name=mine, output_dir=runs, reason=none)",
        ),
        (None, InputError("none"), "deployment.no_run_to_resume(output_dir=runs, reason=none)"),
        ("mine", StorageError("away"), "away"),
    ],
)
def test_a_run_that_is_not_at_its_backup_either_is_named(
    name: str | None,
    error: Exception,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> str:
        raise error

    monkeypatch.setattr(resuming, "named_run", fail)
    options = BackupConfig(place=str(tmp_path / "place"))
    with pytest.raises(type(error)) as caught:
        resuming._from_place(name, Path("runs"), options, print)
    assert str(caught.value) == text
    notes = getattr(caught.value, "__notes__", [])
    is_away = isinstance(error, StorageError)
    assert notes == ["deployment.run_may_be_there(output_dir=runs)"] * is_away
