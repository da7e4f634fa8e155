"""One process trains a run at a time, and begins with a tidy directory."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.monitoring.records.run_owner import HOLDER_FILE, read_trainer
from infrastructure.run import lock
from infrastructure.run.find import Beginning
from infrastructure.run.lock import (
    only_trainer_of,
    refuse_trained_elsewhere,
    waited_for,
)
from infrastructure.run.repair import is_free

HALF_WRITTEN = ".summary.json.a1b2c3d4.part"


def is_trained(run_path: Path) -> bool:
    trainer = read_trainer(run_path)
    return trainer is not None and trainer.is_alive is not False


def test_inside_nobody_else_trains_it_and_it_is_known_who_does(tmp_path: Path) -> None:
    assert read_trainer(tmp_path) is None
    with only_trainer_of(tmp_path):
        trainer = read_trainer(tmp_path)
        assert trainer is not None
        assert (trainer.pid, trainer.is_alive) == (os.getpid(), True)
        with pytest.raises(ValueError, match=str(os.getpid())), only_trainer_of(tmp_path):
            pass
        with pytest.raises(ValueError, match=str(os.getpid())):
            refuse_trained_elsewhere(tmp_path)
        with pytest.raises(ValueError, match=str(os.getpid())), waited_for(tmp_path, 0.0):
            pass
        assert read_trainer(tmp_path) == trainer
    assert not is_trained(tmp_path)
    refuse_trained_elsewhere(tmp_path)
    with waited_for(tmp_path, 0.0):
        assert not is_trained(tmp_path), "who waits does not train"
        with pytest.raises(ValueError, match=rf"\(run={tmp_path.name}, trainer=another process\)"):
            refuse_trained_elsewhere(tmp_path)


def test_an_error_inside_leaves_the_run_free(tmp_path: Path) -> None:
    with pytest.raises(KeyError), only_trainer_of(tmp_path):
        raise KeyError("broken")
    assert not is_trained(tmp_path)
    refuse_trained_elsewhere(tmp_path)


@pytest.mark.parametrize("above", [".", "objects"])  # of the run, not of its store
def test_what_a_killed_process_has_left_half_written_is_gone(tmp_path: Path, above: str) -> None:
    run = tmp_path / above / "run"
    inside = run / "checkpoints" / "objects" / "ab"
    for folder in (run, run / "logs" / "errors", inside):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / HALF_WRITTEN).touch()
        (folder / "whole.json").touch()
    with only_trainer_of(run):
        left = {path.relative_to(run) for path in run.rglob(HALF_WRITTEN)}
        assert left == {(inside / HALF_WRITTEN).relative_to(run)}, "the store sweeps its own"
        assert len([*run.rglob("whole.json")]) == 3


@pytest.mark.parametrize("name", ["final", "tokenizer", "resume"])
def test_a_directory_that_had_stepped_aside_for_a_new_one_is_back(
    tmp_path: Path, name: str
) -> None:
    aside, part = (tmp_path / f".{name}.0a1b2c3d.{end}" for end in ("old", "part"))
    for folder in (aside, part):
        folder.mkdir()
        (folder / f"of-{folder.suffix}").touch()
    with only_trainer_of(tmp_path):
        assert [path.name for path in (tmp_path / name).iterdir()] == ["of-.old"]
        assert not part.exists()


def test_waiting_ends_as_soon_as_the_run_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [True, True, False]
    slept: list[float] = []
    monkeypatch.setattr(lock, "_is_trained_elsewhere", lambda path: answers.pop(0))
    monkeypatch.setattr(lock.time, "sleep", slept.append)
    with waited_for(tmp_path, 600.0):
        assert (answers, slept) == ([], [0.1, 0.1])
        with pytest.raises(ValueError, match=r"run_is_being_trained\(.*trainer=another process\)"):
            refuse_trained_elsewhere(tmp_path)
    refuse_trained_elsewhere(tmp_path)
    answers[:] = [True] * 9
    with waited_for(tmp_path, 0.0):
        assert len(answers) == 8, "the time is up"


@pytest.mark.parametrize(
    ("line", "is_waited_for"),
    [
        (None, False),
        ("process {other} on {machine}", True),
        ("process {own} on {machine}", False),
        ("process {other} on {machine} ended", False),
        ("process 7 on another-machine", False),
    ],
)
def test_only_another_process_that_is_known_to_run_is_waited_for(
    tmp_path: Path, line: str | None, is_waited_for: bool
) -> None:
    if line is not None:
        named = line.format(own=os.getpid(), other=os.getppid(), machine=os.uname().nodename)
        (tmp_path / HOLDER_FILE).write_text(f"{named}\n")
    assert lock._is_trained_elsewhere(tmp_path) is is_waited_for


def test_a_file_system_without_locks_keeps_no_run_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    refuse_trained_elsewhere(tmp_path)
    assert is_free(tmp_path)
    Beginning(DeploymentConfig(output_dir=str(tmp_path))).end()
