"""Runs are named, and found again, as people name them."""

import json
import re
from pathlib import Path

import pytest

from infrastructure.backup.format.store import Store
from infrastructure.run.checkpoint_paths import by_step
from infrastructure.run.directory import RunDirectory, default_name, find_run, is_called, plan_run
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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "20260101-000000-a-12",
            r"did_you_mean\(meant=20260101-000000-a-11\)",
        ),
        ("20260101-000000-a-11@15", r"run\.no_such_checkpoint.*15.*steps=10, 20"),
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


def test_a_run_is_called_by_its_model_and_its_method(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "20261124-074404-my-llama-ab12"
    (run / "final").mkdir(parents=True)
    (tmp_path / "plain").mkdir()
    for path in (run, run / "final"):
        assert default_name(str(path), "sft") == "my-llama"
        assert default_name(str(path), "dpo") == "my-llama-dpo"
    assert default_name(str(tmp_path / "plain"), "sft") == "plain"
    assert default_name("embedded", "sft") == "embedded"
    assert default_name("owner/name", "grpo") == "owner/name-grpo"
    assert "-my-llama-dpo-" in plan_run(tmp_path, default_name(str(run), "dpo")).run_id
