"""A run with a place: what is copied, what is said about it, and going on where nothing is left."""

import json
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from infrastructure.backup.format.store import Store
from infrastructure.backup.replication import copier_client
from infrastructure.backup.replication.apart import ApartSettings
from infrastructure.backup.replication.status import BackupStatus, short_words
from infrastructure.commands.train import exit_code_of_training
from infrastructure.config.field_help import words_taken
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.errors import StorageError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.messages import phrase
from infrastructure.deployment import forecast
from infrastructure.monitoring.records.run_view import read_view
from infrastructure.run import replication as run_copies
from infrastructure.run.directory import RunDirectory
from infrastructure.run.restore import run_at_place
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from tests.deployment.runs import (
    deploy,
    end,
    losses,
    newest_step,
    runs_of,
    small_config,
    small_settings,
    start_temper,
    when_saved,
)
from tests.deployment.test_resuming import resumed_from, stop_after
from tests.slow import slow, slow_but


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk/temper"


def with_place(folder: Path, place: Path, **training: Any) -> Any:
    config = small_config(folder, **training)
    config.backup.place = str(place)
    return config


def lose(directory: Path) -> None:
    """Remove it although a copier may still write its last words there."""
    for _ in range(300):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(0.1)
    raise AssertionError(f"{directory} comes back")


def test_every_view_shows_what_is_safe_and_other_machines_learn_of_the_place(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[ApartSettings | None] = []
    close = CheckpointManager.close

    def noted(self: CheckpointManager) -> None:
        places.append(self.apart())
        close(self)

    monkeypatch.setattr(CheckpointManager, "close", noted)
    config = with_place(tmp_path, place, max_steps=2)
    config.verbose = True
    run, lines = deploy(config)
    assert places[0] is not None
    assert places[0].settings.run_id == run.name
    assert places[0].link().place.url == str(place)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["backup"]["confirmed_step"] == 2
    assert summary["backup"]["published"] == f"{place}/{run.name}/final"
    assert (place / run.name / "final/config.json").is_file()
    assert any(
        line.startswith("backup.status(confirmed=backup.step_confirmed(step=2,") for line in lines
    )
    assert any(line.startswith("Disk: ") for line in lines)
    assert any(line.startswith(f"{place}: ") for line in lines)
    assert any("backup.destination_on_same_disk" in line for line in lines)
    page = (run / "report.html").read_text()
    assert "monitoring.backups_heading" in page
    assert f"monitoring.backup_step_confirmed(step=2, place={place})" in page
    assert Store(place / run.name).newest()[1] == []
    summary["backup"]["text"] = "as it stood then"
    (run / "summary.json").write_text(json.dumps(summary))
    again = deploy(with_place(tmp_path, place, max_steps=2))[1]
    assert any(
        line.startswith("backup.status(confirmed=backup.step_confirmed(step=2,") for line in again
    )


def test_a_copier_that_cannot_run_is_reported_everywhere_and_not_waited_for(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier_client, "MODULE", "infrastructure.backup.no_such_process")
    config = with_place(tmp_path, place, max_steps=2)
    config.backup.finish_seconds = 600.0  # as it would wait for a place that is slow
    begin = time.monotonic()
    run, lines = deploy(config)
    assert time.monotonic() - begin < 300
    why = "core.ended_with_exit_code"  # once, or several times in a row
    assert any("backup.nothing_confirmed_yet()" in line for line in lines)
    assert any("No module named infrastructure.backup.no_such_process" in line for line in lines)
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["backup"]["state"], summary["backup"]["newest_step"]) == ("down", 2)
    assert why in summary["backup"]["text"]
    assert why in (run / "report.html").read_text()
    assert why in read_view(run)["backup"]["text"]


def test_without_a_place_there_is_one_line(tmp_path: Path) -> None:
    run, lines = deploy(small_config(tmp_path, max_steps=1))
    assert phrase("monitoring.checkpoints_not_backed_up") in lines
    not_backed_up = phrase("monitoring.checkpoints_not_backed_up")
    named = [line for line in lines if "backed_up" in line or "backup." in line]
    assert named == [not_backed_up]
    assert phrase("monitoring.checkpoints_not_backed_up") in (run / "report.html").read_text()


def test_backups_that_are_off_are_off(tmp_path: Path, place: Path) -> None:
    config = with_place(tmp_path, place, max_steps=1)
    config.enable_backups = False
    assert phrase("monitoring.checkpoints_not_backed_up") in deploy(config)[1]
    assert not place.exists()


def test_a_new_machine_goes_on_with_what_lies_at_the_place(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        run, lines = deploy(with_place(tmp_path, place, max_steps=3))
    assert any(
        "deployment.stopped_at_step" in line and "step_confirmed(step=2," in line for line in lines
    )
    lose(tmp_path / "runs")
    lose(tmp_path / "cache")
    again, lines = deploy(with_place(tmp_path, place, max_steps=3))
    assert again == run
    restoring = f"deployment.restoring_matching_run(run_id={run.name}, destination={place})"
    assert restoring in lines
    assert resumed_from(run, 2) in "\n".join(lines)
    went_on = [{"step": 2, "was_killed": False, "place": str(place)}]
    assert json.loads((run / "summary.json").read_text())["went_on"] == went_on
    page = (run / "report.html").read_text()
    assert "monitoring.total_step_time" in page
    start = "start=monitoring.resumed_from_step(step=2)"
    back = f"restored=monitoring.restored_from(places={place}))"
    often = "times=monitoring.once(), cause=monitoring.a_stop()"
    assert f"monitoring.resumed_times({often}, {start}, {back}." in page
    fresh = small_config(tmp_path, max_steps=3)
    fresh.new_run = True
    assert losses(again) == losses(deploy(fresh)[0])


@slow
def test_before_a_deadline_there_is_time_for_the_copy(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    wait = run_copies.RunReplication.wait
    monkeypatch.setattr(
        run_copies.RunReplication, "wait", lambda self, s: (waited.append(s), wait(self, s))[1]
    )
    config = with_place(tmp_path, place, max_steps=100_000, num_epochs=100_000, deadline="25s")
    config.backup.emergency_seconds = 8.0
    started = time.monotonic()
    _, lines = deploy(config)
    assert time.monotonic() - started < 25
    assert waited[0] >= 8.0
    assert any("reason=run.deadline_near()" in line for line in lines)
    assert any("deployment.deadline_applies_again" in line for line in lines)
    assert "backup.step_in_flight" not in lines[-1]


def test_a_copy_that_takes_long_is_begun_earlier(tmp_path: Path, place: Path) -> None:
    config = with_place(tmp_path, place)
    copies = run_copies.RunReplication(RunDirectory(tmp_path / "runs/one"), config, print)
    now = time.time()
    status = BackupStatus("here", "idle", saved_at=now - 300, confirmed_at=now - 100)
    copies._seen = (time.monotonic(), status)
    assert copies.seconds_to_confirm() == pytest.approx(300)
    config.backup.finish_seconds = 250.0
    assert copies.seconds_to_confirm() == 250.0


def test_another_training_does_not_go_on_with_what_lies_there(tmp_path: Path, place: Path) -> None:
    """As `deploy` asks it when there is no run here."""
    run, _ = deploy(with_place(tmp_path, place, max_steps=1))
    lose(tmp_path / "runs")
    assert run_at_place(with_place(tmp_path, place, max_steps=1, seed=5), []) is None
    assert run_at_place(with_place(tmp_path, place, max_steps=1), []) == run.name


def test_a_place_that_cannot_be_read_is_reported_before_anything_is_trained(tmp_path: Path) -> None:
    config = with_place(tmp_path, tmp_path / "not-mounted/temper", max_steps=1)
    for config.new_run in (False, True):
        with pytest.raises(StorageError, match=r"backup\.destination_unusable"):
            deploy(config)
        assert runs_of(tmp_path) == []


def test_a_place_that_goes_away_stops_nobody(tmp_path: Path) -> None:
    config = with_place(tmp_path, tmp_path / "not-mounted/temper", max_steps=2)
    config.backup.allow_missing_place, config.backup.finish_seconds = True, 1.0
    run, lines = deploy(config)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert "backup.folder_not_safe(" in summary["backup"]["problem"]
    assert exit_code_of_training(summary) == ExitCode.NOT_CONFIRMED
    assert any("run.training_without_backups" in line for line in lines)
    assert "backup.finished_run_not_confirmed(" in lines[-1]


def test_a_disk_that_is_too_small_is_reported_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast, "SMALL_BYTES", 10**16)
    with pytest.raises(StorageError, match=r"backup\.no_space_for_rotation"):
        deploy(small_config(tmp_path, max_steps=3))


def test_the_wait_at_the_end_can_be_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Any, *arguments: object) -> BackupStatus:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_copies.RunBackup, "finish", interrupted)
    config = with_place(tmp_path, tmp_path / "not-mounted/temper", max_steps=2)
    config.backup.allow_missing_place, config.backup.finish_seconds = True, 2.0
    run, lines = deploy(config)
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"
    (skipped,) = (line for line in lines if line.startswith("run.backup_continues_unattended"))
    # The copier may not have looked at the place yet.
    assert re.search(r"backup\.nothing_confirmed_yet|backup\.state_", skipped)
    assert "backup.finished_run_not_confirmed(" in lines[-1]


def test_a_signal_leaves_a_confirmed_copy_within_the_emergency_time(
    tmp_path: Path, place: Path
) -> None:
    settings = small_settings(tmp_path, num_epochs=4000, keep_checkpoints=2)
    settings["backup"] = {"place": str(place), "emergency_seconds": 100}
    (tmp_path / ".config").mkdir()
    (tmp_path / ".config/training_config.yaml").write_text(json.dumps(settings))
    process = start_temper("train", folder=tmp_path)
    run = when_saved(tmp_path, 3, process)
    code, out, _ = end(process, signal.SIGTERM)
    assert code == 143
    assert f"backup.step_confirmed(step={newest_step(run)}," in out
    name, rejected = Store(place / run.name).newest()
    assert (name, rejected) == (Store(run / "checkpoints").newest()[0], [])


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (BackupStatus(state="idle"), "backup.short_status_none_confirmed(failing=)"),
        (BackupStatus(state="fenced"), "backup.short_status_fenced()"),
        (
            BackupStatus(state="idle", saved_at=100.0, confirmed_at=101.0, confirmed_step=7),
            "backup.short_status(step=7, age=45 s, failing=)",
        ),
    ],
)
def test_the_bar_shows_how_old_the_safe_state_is(status: BackupStatus, words: str) -> None:
    assert short_words(status, 145.0) == words


@pytest.mark.parametrize(
    "optimizer",
    slow_but(["adamw_8bit", "sgd"], words_taken(TrainingConfig.model_fields["optimizer"])),
)
def test_what_a_version_takes_is_known_before_there_is_one(
    tmp_path: Path, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[int] = []
    check = run_copies.RunReplication.check_free_space

    def remember(self: Any, num_bytes: int, total_steps: int) -> None:
        reported.append(num_bytes - forecast.SMALL_BYTES)
        check(self, num_bytes, total_steps)

    monkeypatch.setattr(run_copies.RunReplication, "check_free_space", remember)
    run, _ = deploy(small_config(tmp_path, max_steps=1, optimizer=optimizer))
    store = Store(run / "checkpoints")
    tensors = [n for n in store.read(store.versions()[0]).tensors if n.startswith(("model", "opt"))]
    loaded = dict(store.load(store.read(store.versions()[0])))
    written = sum(len(loaded[name].data) for name in tensors)
    assert reported[0] == pytest.approx(written, rel=0.02), optimizer
