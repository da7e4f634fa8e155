"""Runs are named, and found again, as people name them."""

import json
import re
from pathlib import Path

import pytest

from infrastructure.backup.format.store import Store
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.checksums import write_record
from infrastructure.run import directory
from infrastructure.run.checkpoint_paths import by_step
from infrastructure.run.directory import (
    RunDirectory,
    default_name,
    find_run,
    is_called,
    is_named_in_id,
    name_within,
    plan_run,
)
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name, steps in (("20260101-000000-a-11", [10, 20]), ("20260102-000000-b-22", [5])):
        for step in steps:
            Store(tmp_path / name / "checkpoints").commit({}, {}, step=step)
        (tmp_path / name / "run.json").write_text(json.dumps({"run_id": name}))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "in_ascii"),
    [
        ("Prüfung für Zoë", "Prufung-fur-Zoe"),
        ("große Straße", "grosse-Strasse"),
        ("日本", "run"),
    ],
)
def test_a_name_keeps_its_letters_in_ascii(name: str, in_ascii: str, tmp_path: Path) -> None:
    run = plan_run(tmp_path, name)
    assert re.fullmatch(rf"\d{{8}}-\d{{6}}-{in_ascii}-[0-9a-f]{{4}}", run.run_id)
    assert is_called(run, name)


def test_the_newest_run_is_the_default(runs: Path) -> None:
    run, checkpoint = find_run(None, runs)
    assert (run.run_id, checkpoint) == ("20260102-000000-b-22", None)


def test_a_run_is_named_by_id_or_path(runs: Path) -> None:
    for name in ("20260101-000000-a-11", str(runs / "20260101-000000-a-11")):
        run, checkpoint = find_run(name, runs)
        assert (run.run_id, checkpoint) == ("20260101-000000-a-11", None)


def test_a_checkpoint_is_named_by_step_or_path(runs: Path) -> None:
    path = by_step(CheckpointManager(runs / "20260101-000000-a-11" / "checkpoints").store)[10]
    for name in ("20260101-000000-a-11@10", str(path)):
        run, checkpoint = find_run(name, runs)
        assert run.run_id == "20260101-000000-a-11"
        assert checkpoint == path.resolve()


def test_a_path_is_a_run_even_if_it_reads_like_a_checkpoint(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (runs / "20260101-000000-a-11").rename(runs / "a@10")
    run, checkpoint = find_run(f"{runs}/a@10", runs)
    assert (run.run_id, checkpoint) == ("a@10", None)
    path = by_step(Store(run.checkpoints))[20]
    monkeypatch.chdir(runs)
    assert find_run(str(path.relative_to(runs)), Path("none")) == (run, path)
    with pytest.raises(ValueError, match=rf"which={path.stem}, steps=5\)"):
        find_run(f"{runs}/b-22/checkpoints/versions/{path.name}", runs)


def test_the_files_of_a_run_have_their_names(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "a")
    files = (run.run_file, run.summary_file, run.before_file, run.quarantine_file)
    folders = (run.trained_rows_file, run.checkpoints, run.final, run.tokenizer)
    assert [path.relative_to(run.path).as_posix() for path in (*files, *folders)] == [
        *("run.json", "summary.json", "before.json", "quarantine.jsonl"),
        *("trained_rows.json", "checkpoints", "final", "tokenizer"),
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "20260101-000000-a-12",
            r"did_you_mean\(meant=20260101-000000-a-11\)",
        ),
        (
            "20260101-000000-a-11@15",
            r"such_checkpoint\(run=.*a-11, which=at step '15', steps=10, 20",
        ),
        ("20260101-000000-a-11@last", r"no_such_checkpoint\(.*which=at step 'last', steps=10, 20"),
    ],
)
def test_a_wrong_name_is_answered_with_what_there_is(runs: Path, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_run(name, runs)


def test_no_run_at_all_explains_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"monitoring\.no_runs"):
        find_run(None, tmp_path)


def test_a_new_run_is_planned_and_not_made(tmp_path: Path) -> None:
    run = plan_run(tmp_path / "out", "owner/name of model")
    assert run.path.parent == tmp_path / "out"
    assert "owner-name-of-model" in run.run_id
    assert not run.path.exists()
    assert is_called(run, "owner/name of model")
    assert not is_called(run, "another")
    assert is_called(RunDirectory(tmp_path / "my_run"), "my_run")


def test_an_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ValueError,
        match=r"output_dir_not_writable\(.*/file, .*output_dir_is_a_file",
    ):
        plan_run(tmp_path / "file", "model")


def test_a_damaged_run_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"core\.record_not_json"):
        RunDirectory(tmp_path).read_run()


def test_a_run_is_called_by_its_model_and_its_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "runs" / "20261124-074404-my-llama-ab12"
    (run / "final").mkdir(parents=True)
    (tmp_path / "plain").mkdir()
    (tmp_path / "latest").symlink_to(run)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(run / "final")
    for path in (run, run / "final", ".", tmp_path / "latest"):
        assert default_name(str(path), "sft") == "my-llama"
        assert default_name(str(path), "dpo") == "my-llama-dpo"
    assert default_name(str(tmp_path / "plain"), "sft") == default_name("~/plain", "sft") == "plain"
    assert default_name("embedded", "sft") == "embedded"
    assert default_name("owner/name", "grpo") == "owner/name-grpo"
    assert "-my-llama-dpo-" in plan_run(tmp_path, default_name(str(run), "dpo")).run_id


def test_the_best_checkpoint_and_that_of_a_step_are_found(runs: Path) -> None:
    name = "20260101-000000-a-11"
    with pytest.raises(ValueError, match=rf"no_measured_checkpoint\(run={name}\)"):
        find_run(f"{name}@best", runs)
    store = Store(runs / name / "checkpoints")
    best = store.commit({}, {}, step=30, score=0.5)
    store.commit({}, {}, step=40, score=0.75)
    assert find_run(f"{name}@best", runs)[1] == store.manifest_path(best)
    found = find_run(f"{runs / name}/checkpoint-30", runs)
    assert found == (RunDirectory(runs / name), store.manifest_path(best))
    newest, checkpoint = find_run(f"{runs}/checkpoint-5", runs)  # of the newest run in a folder
    assert newest.run_id == "20260102-000000-b-22"
    assert checkpoint is not None
    with pytest.raises(ValueError, match=r"no_such_checkpoint\(run=20260102.*steps=5\)"):
        find_run(f"{runs}/checkpoint-10", runs)
    with pytest.raises(ValueError, match=r"checkpoint_folder_missing\(.*step=5\)"):
        find_run(f"{runs}/none/checkpoint-5", runs)


@pytest.mark.parametrize(
    ("newest", "expected"),
    [
        ("20260101-000000-a-0000", "20260102-030405-new-8000"),
        ("20260102-030405-a-7fff", "20260102-030405-new-8000"),
        ("20260102-030405-a-8000", "20260102-030405-new-8001"),
        ("20260102-030405-a-ffff", "20260102-030406-new-0000"),
        ("20260102-235959-a-ffff", "20260103-000000-new-0000"),
        ("20270101-000000-a-fffe", "20270101-000000-new-ffff"),  # the clock was set back
        ("20270101-000000-a", "20270101-000000-new-0001"),
        ("2027-my-own-folder", "20260102-030405-new-8000"),
    ],
)
def test_a_new_run_comes_after_all_others(
    newest: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory.time, "time", lambda: 0.0)
    monkeypatch.setattr(directory, "moment_of", lambda seconds: ("20260102-030405", "8000"))
    for name in ("20250101-000000-old-1234", newest):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    assert plan_run(tmp_path, "new").run_id == expected


@pytest.mark.parametrize(
    ("run_id", "name"),
    [
        ("20260102-030405-my-run-8000", "my-run"),
        ("20260102-030405-my-run-800", "20260102-030405-my-run-800"),
        ("my-run", "my-run"),
    ],
)
def test_the_name_in_an_id_is_what_a_person_gave(run_id: str, name: str) -> None:
    assert name_within(run_id) == name
    assert is_named_in_id(run_id, name)
    assert not is_named_in_id(run_id, name[:-1])


@pytest.mark.parametrize(
    ("name", "in_file"),
    [
        ("a/b c", "a-b-c"),
        ("..a.", "a"),
        ("x" * 50, "x" * 40),
        ("begin" + "y" * 40, "y" * 40),
        ("-", "run"),
    ],
)
def test_a_name_is_cut_to_what_a_folder_takes(name: str, in_file: str, tmp_path: Path) -> None:
    assert name_within(plan_run(tmp_path, name).run_id) == in_file


def test_a_run_of_a_method_does_not_name_it_twice(tmp_path: Path) -> None:
    run = tmp_path / "20261124-074404-my-llama-dpo-ab12"
    run.mkdir()
    assert default_name(str(run), "dpo") == "my-llama-dpo"
    assert default_name(str(run), "grpo") == "my-llama-dpo-grpo"
    assert default_name("owner/dpo-model", "dpo") == "owner/dpo-model-dpo"


def test_what_run_json_lacks_is_named(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    saved = DeploymentConfig(batch_size=4).to_dict()
    broken = {**saved, "values": {**saved["values"], "training": {"batch_size": 0}}}
    cases: list[tuple[object, str]] = [
        (None, r"run\.run_file_missing\(.*run_file=run\.json\)"),
        ({"configuration": 3}, r"run\.run_file_without_configuration"),
        (
            {"trainer": {"class": "x"}, "command": "a.py --b"},
            r"run_of_a_trainer\(.*run_script_again\(command=a\.py --b\)",
        ),
        ({"configuration": broken}, r"run\.recorded_configuration_invalid\(.*training\.batch_size"),
        ({"configuration": {"values": {}}}, r"run\.recorded_configuration_unreadable"),
    ]
    for record, refusal in cases:
        if record is not None:
            write_record(run.run_file, record)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=refusal):
            run.read_configuration()
    write_record(run.run_file, {"configuration": saved})
    assert run.read_configuration().batch_size == run.read_settings().batch_size == 4
    assert run.masked() == []
    secret = DeploymentConfig(backup={"place": "sftp://me:letmein99@host/a"})
    write_record(run.run_file, {"configuration": secret.to_dict()})
    assert run.masked() == ["backup.place"]


def test_a_run_of_a_trainer_has_some_of_the_settings(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert not run.is_of_a_trainer()
    write_record(run.run_file, {"trainer": {"class": "x"}})
    assert run.is_of_a_trainer()
    assert run.read_settings().to_dict() == DeploymentConfig().to_dict()
    settings = DeploymentConfig(batch_size=4).to_dict()
    write_record(run.run_file, {"trainer": {"class": "x"}, "settings": settings})
    assert run.read_settings().batch_size == 4


@pytest.mark.parametrize(
    ("summary", "has_model", "status", "is_finished"),
    [
        (None, True, "running", False),
        ({"status": "finished"}, True, "finished", True),
        ({"status": "finished"}, False, "finished", False),
        ({"status": "stopped"}, True, "stopped", False),
        ({"status": "failed"}, True, "failed", False),
        ({"status": "other"}, True, "running", False),
        ({}, True, "running", False),
    ],
)
def test_a_run_is_finished_with_its_summary_and_its_model(
    summary: dict[str, str] | None, has_model: bool, status: str, is_finished: bool, tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path)
    if summary is not None:
        write_record(run.summary_file, summary)  # type: ignore[arg-type]
    if has_model:
        run.final.mkdir()
    assert (run.status(), run.is_finished()) == (status, is_finished)
