"""Finished means confirmed: places that are not there or go away, and runs killed at their end."""

import functools
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infrastructure.backup.replication.status import GONE, BackupStatus, live_status, write_status
from infrastructure.backup.run_backup import RunBackup
from infrastructure.commands.main import main
from infrastructure.commands.resume import resume
from infrastructure.commands.train import exit_code_of_training
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.files import file_sha256
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.run import replication as run_copies
from tests.deployment.runs import (
    deploy,
    end_copiers,
    runs_of,
    small_config,
    small_settings,
    start_temper,
)
from tests.faults.kill_storm import in_child
from tests.slow import slow_but

Config = Callable[..., Any]


def config_in(folder: Path, finish_seconds: float = 60.0) -> Any:
    made = small_config(folder, max_steps=2, validation_frequency=None)
    options = {"place": str(folder / "disk"), "finish_seconds": finish_seconds}
    made.backup = made.backup.copy_with(**options)
    return made


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder `work` with the run of all tests; beside it, what lay there when the run was killed
    at its end, and when it was `copied`."""
    states = tmp_path_factory.mktemp("states")
    work = states / "work"
    (work / "disk").mkdir(parents=True)
    kill_at_the_end(config_in(work), work)
    shutil.copytree(work, states / "killed")
    deploy(config_in(work))
    end_copiers(work)
    shutil.copytree(work, states / "copied")
    return states


@pytest.fixture
def work(states: Path) -> Iterator[Path]:
    """The folder of the run, always the same: its record has whole paths."""
    yield states / "work"
    end_copiers(states / "work")


@pytest.fixture
def disk(work: Path) -> Path:
    return work / "disk"


@pytest.fixture
def killed(states: Path, work: Path) -> Path:
    """A run whose processes were killed when it was finished and nothing of the end was copied."""
    return put(states / "killed", work)


@pytest.fixture
def copied(states: Path, work: Path) -> Path:
    """A finished run that lies at its place, too."""
    return put(states / "copied", work)


def put(state: Path, work: Path) -> Path:
    shutil.rmtree(work)
    shutil.copytree(state, work)
    (run,) = runs_of(work)
    return run


@pytest.fixture
def config(work: Path) -> Config:
    """The same command, as it is given again and again."""
    return functools.partial(config_in, work)


def kill_at_the_end(config: Any, folder: Path) -> None:
    def train() -> None:
        run_copies.RunReplication.complete = (  # type: ignore[method-assign]
            lambda self, seconds, record: os.kill(os.getpid(), signal.SIGKILL)
        )
        TrainingDeployment(config, say=lambda line: None).run()

    child = in_child(train)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    end_copiers(folder)
    (run,) = runs_of(folder)
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"


def is_whole_at(disk: Path, run: Path) -> bool:
    """Whether the place alone gives back the finished model and the run's last files."""
    for name in ("final", "report"):
        folder = disk / run.name / name
        if not (folder / "SHA256SUMS").is_file():
            return False
        for line in (folder / "SHA256SUMS").read_text().splitlines():
            digest, _, file = line.partition("  ")
            if file_sha256(folder / file) != digest:
                return False
    here, there = run / "final/model.safetensors", disk / run.name / "final/model.safetensors"
    return here.read_bytes() == there.read_bytes()


@pytest.mark.parametrize("how", ["train", "resume", "backup create"])
def test_a_run_that_was_killed_when_it_was_finished_is_copied_by_the_same_command(
    killed: Path, disk: Path, config: Config, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = killed
    monkeypatch.chdir(disk.parent)
    (run / "report.html").unlink()
    assert not (disk / run.name / "final").exists()
    metrics = (run / "metrics.jsonl").read_bytes()
    if how == "train":
        lines = deploy(config())[1]
        assert any("deployment.run_finished_before" in line for line in lines)
        assert not any("not_confirmed" in line for line in lines)
        assert (run / "report.html").is_file()
    elif how == "resume":
        assert resume(run.name, str(run.parent)) == ExitCode.DONE
    else:
        assert main(["backup", "create", run.name]) == ExitCode.DONE
    assert (run / "metrics.jsonl").read_bytes() == metrics, "nothing is trained"
    files = {path.name for path in (disk / run.name / "report").iterdir()} if how == "train" else {}
    assert not files or {"summary.json", "report.html", "metrics.jsonl"} <= files
    assert is_whole_at(disk, run)


def test_a_place_that_is_away_at_the_end_is_reported_loudly_until_it_is_back(
    killed: Path, tmp_path: Path, disk: Path, config: Config
) -> None:
    run = killed
    away = disk.rename(tmp_path / "away")
    disk.mkdir()  # what is left of a mount
    summary = TrainingDeployment(config(2.0), say=(lines := []).append).run()  # type: ignore[var-annotated]
    assert exit_code_of_training(summary) == ExitCode.NOT_CONFIRMED
    assert lines[-1].startswith(f"backup.finished_run_not_confirmed(run={run.name}, ")
    assert f"backup.not_the_runs_destination(run={run.name}, " in lines[-1]
    assert list(disk.iterdir()) == [], "nothing is written below a mount that is away"
    disk.rmdir()
    away.rename(disk)
    again = TrainingDeployment(config(), say=lines.append).run()
    assert exit_code_of_training(again) == ExitCode.DONE
    assert is_whole_at(disk, run)


def test_a_file_of_the_copy_that_was_changed_is_not_taken_for_confirmed(
    copied: Path, disk: Path, config: Config
) -> None:
    run = copied
    model = disk / run.name / "final/model.safetensors"
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(data)
    assert main(["backup", "verify", run.name, "--output", str(run.parent)]) == 1
    summary = TrainingDeployment(config(), say=lambda line: None).run()
    assert exit_code_of_training(summary) == ExitCode.DONE
    where = Path(summary["backup"]["published"])
    assert (where / model.name).read_bytes() == (run / "final" / model.name).read_bytes()


def test_a_finished_run_that_lies_at_the_place_alone_is_not_trained_again(
    copied: Path, work: Path, disk: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copied
    weights = file_sha256(run / "final/model.safetensors")
    shutil.rmtree(run)
    with monkeypatch.context() as patch:
        patch.setattr(TrainingDeployment, "resume", None)
        again, lines = deploy(config())
    assert again == run
    assert f"run.finished_at_destination(url={disk / run.name}/final)" in lines
    assert file_sha256(run / "final/model.safetensors") == weights
    assert (run / "report.html").is_file()
    end_copiers(work)
    shutil.rmtree(run)
    (disk / run.name / "final/SHA256SUMS").unlink()  # killed before the copy's last byte
    _, lines = deploy(config())
    assert any("deployment.resuming_from_step" in line and "step=2" in line for line in lines)
    assert is_whole_at(disk, run)
    assert file_sha256(disk / run.name / "final/model.safetensors") == weights


@pytest.mark.parametrize("flags", [[], ["--new-run"]])
def test_a_typing_mistake_is_found_before_the_first_step(
    tmp_path: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(json.dumps(small_settings(tmp_path, max_steps=1)))
    place = tmp_path / "dsik/temper"
    arguments = ["train", "--config", str(tmp_path / "config.yaml"), "--backup-place", str(place)]
    assert main([*arguments, *flags]) == ExitCode.WRONG_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert f"backup.destination_unusable(url={place}, " in line
    assert "backup.or_allow_missing_destination()" in line
    assert runs_of(tmp_path) == []


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (OSError(30, "Read-only file system"), "backup.advice_folder_read_only"),
        (ConnectionError("no route to host"), "no route to host"),
    ],
)
def test_a_place_that_cannot_be_written_to_is_found_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: OSError, words: str
) -> None:
    def refuse(self: RunBackup) -> None:
        raise problem

    monkeypatch.setattr(RunBackup, "_contact", refuse)
    (tmp_path / "disk").mkdir()
    with pytest.raises(Exception, match=words):
        deploy(config_in(tmp_path))
    assert runs_of(tmp_path) == []


def test_a_resumed_run_notices_that_its_place_is_another_one(
    copied: Path, tmp_path: Path, disk: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copied
    (run / "summary.json").unlink()  # as if it were not finished
    disk.rename(tmp_path / "away")
    disk.mkdir()
    with pytest.raises(Exception, match=r"backup\.folder_without_marker"):
        deploy(config())
    monkeypatch.chdir(disk.parent)
    named = ["backup", "create", run.name, "--place", str(disk)]
    assert main(named) == ExitCode.DONE, "a person has named it: from here on this is the place"
    assert deploy(config())[0] == run


def test_a_status_whose_copier_was_killed_names_that(tmp_path: Path) -> None:
    path = tmp_path / "backup.json"
    copying = BackupStatus(
        "p", "copying", newest_step=4, newest_name="b", in_flight_step=4, total_bytes=9
    )
    write_status(path, copying)
    assert "backup.step_in_flight" in copying.possible_loss(time.time()).text
    found = live_status(path)
    assert found.state == GONE
    assert "backup.step_in_flight" not in (text := found.possible_loss(time.time()).text)
    assert "in_flight=backup.step_waiting(step=4), problem=; backup.state_gone()" in text


@pytest.mark.parametrize("number", slow_but([signal.SIGTERM], [signal.SIGINT, signal.SIGTERM]))
def test_a_signal_ends_the_wait_for_a_place_that_went_away(
    killed: Path, tmp_path: Path, disk: Path, number: signal.Signals
) -> None:
    run = killed
    disk.rename(tmp_path / "away")
    disk.mkdir()
    process = start_temper(*("resume", str(run), "--backup-finish-seconds", "600"), folder=tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("run.waiting_for_backup"):
            break
    process.send_signal(number)
    out, _ = process.communicate(timeout=120)  # of the 600 s that it would wait
    assert process.returncode == ExitCode.NOT_CONFIRMED
    assert "run.backup_continues_unattended" in out
    assert f"backup.finished_run_not_confirmed(run={run.name}, " in out
