"""A runtime is given back when all is safe, and stays otherwise."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colab import drive, release
from colab.release import release_runtime
from infrastructure.backup.backends.drive import DrivePlace
from infrastructure.backup.backends.folder import FolderPlace
from infrastructure.backup.run_backup import STATUS_FILE
from infrastructure.core.checksums import read_record, write_record
from infrastructure.core.lock import Lock
from tests.deployment.runs import deploy, small_config
from tests.fakes.google_colab import ColabSession

Shown = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, which is copied to a folder beside it."""
    folder = tmp_path_factory.mktemp("trained")
    config = small_config(folder, max_steps=2, keep_checkpoints=2)
    config.backup.place = str(folder / "place")
    deploy(config)
    return folder


def only_run(folder: Path) -> Path:
    (run,) = (folder / "runs").iterdir()
    return run


def released(folder: Path, seconds: float = 30.0) -> bool:
    return release_runtime(output_dir=folder / "runs", seconds=seconds)


def test_a_runtime_with_all_safe_is_released(
    colab_session: ColabSession, trained: Path, capsys: Shown
) -> None:
    assert released(trained)
    assert len(colab_session.calls("unassign")) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith(
        f"notebook.finished_run_confirmed(run={only_run(trained).name}, step=2, "
    )
    assert shown[-1] == "notebook.runtime_released()"


def test_a_drive_is_flushed_before(
    colab_session: ColabSession, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "is_drive", lambda options: True)
    drive.mount_drive()
    assert released(trained)
    calls = (colab_session.folder / "calls.jsonl").read_text().splitlines()
    assert [json.loads(call)["call"] for call in calls][-2:] == ["flush_and_unmount", "unassign"]


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        ("no_service", "Unable to find the runtime management service."),
        ("refused", "Unable to request VM unassignment."),
        ("no_network", "Connection refused"),
    ],
)
def test_a_colab_that_does_not_take_it_is_one_sentence(
    colab_session: ColabSession, trained: Path, capsys: Shown, failure: str, sentence: str
) -> None:
    colab_session.behaves(unassign=failure)
    assert not released(trained)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("The runtime stays: notebook.runtime_not_released(error=")
    assert sentence in last


def test_elsewhere_there_is_none_to_give_back(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    monkeypatch.setenv("TEMPER_PLATFORM", "notebook")
    assert not released(trained)
    assert "notebook.no_runtime_outside_colab" in capsys.readouterr().out


def test_a_run_that_nobody_knows_is_wrong_input(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"monitoring\.no_runs"):
        release_runtime(output_dir=tmp_path)


def recorded_place(folder: Path, place: str | None) -> None:
    file = only_run(folder) / "run.json"
    record = read_record(file)
    record["configuration"]["values"]["backup"]["place"] = place
    write_record(file, record)


def without_a_place(folder: Path) -> None:
    recorded_place(folder, None)
    (only_run(folder) / "checkpoints" / STATUS_FILE).unlink()


def test_a_copy_made_after_the_training_counts(
    colab_session: ColabSession, trained: Path, tmp_path: Path
) -> None:
    """The run was trained without a place; `temper backup create` has named one."""
    folder = tmp_path / "copy"
    shutil.copytree(trained, folder)
    recorded_place(folder, None)
    assert released(folder)


def without_its_backup(folder: Path) -> None:
    """And nothing can be put there again: a file is in the way."""
    backup = folder / "place" / only_run(folder).name
    backup.rename(backup.with_name("away"))
    backup.write_text("")


def with_a_damaged_record(folder: Path) -> None:
    (only_run(folder) / "run.json").write_text("{")


def without_checkpoints(folder: Path) -> None:
    shutil.rmtree(only_run(folder) / "checkpoints/versions")


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (without_a_place, "notebook.run_without_backup("),
        (without_its_backup, "_not_confirmed("),
        (with_a_damaged_record, "core.record_not_json"),
        (without_checkpoints, "notebook.run_without_checkpoint("),
    ],
)
def test_what_is_not_known_to_be_safe_stays(
    colab_session: ColabSession,
    trained: Path,
    tmp_path: Path,
    capsys: Shown,
    harm: Callable[[Path], None],
    sentence: str,
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trained, folder)
    recorded_place(folder, str(folder / "place"))
    harm(folder)
    assert not released(folder, seconds=3.0)
    shown = capsys.readouterr().out
    assert shown.startswith("The runtime stays: ")
    assert sentence in shown
    assert colab_session.calls("unassign") == []


def test_a_run_that_is_being_trained_stays(
    colab_session: ColabSession, trained: Path, capsys: Shown
) -> None:
    lock = Lock(only_run(trained) / "lock")
    assert lock.take(wait=False)
    assert not released(trained)
    lock.release()
    assert "notebook.run_is_training(" in capsys.readouterr().out
    assert colab_session.calls("unassign") == []


def test_whether_a_place_is_a_drive(tmp_path: Path) -> None:
    options: Any = small_config(tmp_path).backup
    assert not release.is_drive(options)
    options.place = str(tmp_path)
    assert not release.is_drive(options)
    assert isinstance(release.open_place(options.place), FolderPlace)
    options.place = f"drive:{tmp_path}"
    assert release.is_drive(options)
    assert isinstance(release.open_place(options.place), DrivePlace)
