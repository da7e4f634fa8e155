"""Runs at a place: which of them is of a purpose, and what of one comes back."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from infrastructure.backup.backends.folder import FolderPlace
from infrastructure.backup.format.manifest import SaveKind
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.store import Store
from infrastructure.backup.run_backup import RunBackup
from infrastructure.backup.state.run_files import read_run_files
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.fingerprint import result_settings
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.checksums import read_record, write_record, write_sums
from infrastructure.core.errors import CheckpointError, StorageError
from infrastructure.run.checkpoint_paths import best_of, by_step, step_of
from infrastructure.run.directory import RunDirectory
from infrastructure.run.restore import (
    answer_of,
    check_version,
    folder_of,
    named_run,
    newest_values,
    readable,
    restore_run,
    run_at_place,
    runs_at_place,
    step_at_place,
    why_empty,
)
from tests.backup.memory_place import MemoryPlace

RUN = "20260101-000000-one-0000"
RATE = {"name": "learning_rate", "was": 1, "is": 2, "effect": "changes the result"}


class Disk:
    """A place, and the folder of the runs here."""

    def __init__(self, folder: Path) -> None:
        (folder / "disk").mkdir()
        self.place = FolderPlace(folder / "disk")
        self.options = BackupConfig(place=str(folder / "disk"))
        self.output = folder / "runs"
        self.lines: list[str] = []
        self.run = RunDirectory(self.output / RUN)

    def there(self, step: int, record: object = None, run_id: str = RUN, **facts: Any) -> str:
        """A version at the place, with run.json where it has a record."""
        return self._commit(Store(Path(run_id), self.place), step, record, **facts)

    def here(self, step: int, **facts: Any) -> str:
        return self._commit(Store(self.run.checkpoints), step, None, **facts)

    def _commit(
        self, store: Store, step: int, record: object, values: Any = None, **facts: Any
    ) -> str:
        files: dict[str, TensorBytes] = {}
        if record is not None:
            source = self.output.parent / "source"
            source.mkdir(exist_ok=True)
            write_record(source / "run.json", {"run_id": RUN, "of": record})
            files = {**read_run_files(source)}
        tensors = {**files, "model/w": TensorBytes("U8", (1,), bytes([step]))}
        return store.commit(tensors, values or {"step": step}, step=step, **facts)

    def finished(self, steps: int) -> None:
        """The model and the last files of a finished run at the backup destination."""
        for name, files in (("final", ["model"]), ("report", ["summary.json", "report.html"])):
            folder = self.place.root / RUN / name
            folder.mkdir(parents=True)
            for file in files:
                (folder / file).write_text(file)
        published = {"published": f"{self.place.url}/{RUN}/final"}
        summary: Any = {"status": "finished", "steps": steps, "backup": published}
        write_record(self.place.root / RUN / "report/summary.json", summary)
        for name in ("final", "report"):
            write_sums(self.place.root / RUN / name)

    def restore(self, step: int | None = None) -> int:
        """The step of the checkpoint that comes back."""
        run, checkpoint = restore_run(RUN, self.options, self.output, step, self.lines.append)
        assert run == self.run
        return step_of(checkpoint)

    def record(self) -> dict[str, Any]:
        return read_record(self.run.run_file)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


@pytest.mark.parametrize(
    ("kind", "was_killed"),
    [(SaveKind.SCHEDULED, True), (SaveKind.STOPPED, False), (SaveKind.EMERGENCY, False)],
)
def test_a_run_comes_back_with_its_files_and_how_it_had_ended(
    disk: Disk, kind: SaveKind, was_killed: bool
) -> None:
    disk.there(3, "old")
    disk.there(5, "new", kind=kind)
    assert disk.restore() == 5
    assert disk.record()["of"] == "new"
    back = {"place": disk.place.url, "was_killed": was_killed}
    assert disk.record()["brought_back"] == back


@pytest.mark.parametrize(("status", "was_killed"), [("running", True), ("stopped", False)])
def test_what_is_here_knows_better_how_it_had_ended(
    disk: Disk, status: str, was_killed: bool
) -> None:
    disk.there(5, "new", kind=SaveKind.STOPPED if was_killed else SaveKind.SCHEDULED)
    disk.run.path.mkdir(parents=True)
    write_record(disk.run.summary_file, {"status": status})
    assert disk.restore() == 5
    assert disk.record()["brought_back"]["was_killed"] is was_killed


@pytest.mark.parametrize(
    ("steps_here", "steps_there", "expected"), [([4], [4, 5], "there"), ([5, 6], [5], "here")]
)
def test_files_of_the_run_come_back_with_a_newer_version_only(
    disk: Disk, steps_here: list[int], steps_there: list[int], expected: str
) -> None:
    for step in steps_here:
        disk.here(step)
    for step in steps_there:
        disk.there(step, "there")
    write_record(disk.run.run_file, {"run_id": RUN, "of": "here"})
    disk.restore()
    assert disk.record()["of"] == expected
    assert ("brought_back" in disk.record()) is (expected == "there")


def test_a_record_that_the_newest_version_lacks_comes_from_an_older_one(disk: Disk) -> None:
    disk.there(3, "old")
    disk.there(5)
    assert disk.restore() == 5
    assert disk.record()["of"] == "old"


def test_a_better_version_of_the_place_comes_back_beside_that_of_here(disk: Disk) -> None:
    disk.here(2, score=2.0)
    disk.there(3, score=0.5)
    disk.there(5, "new", score=3.0)
    assert disk.restore() == 5
    store = Store(disk.run.checkpoints)
    best = best_of(store)
    assert best is not None
    assert (step_of(best), sorted(by_step(store))) == (3, [2, 3, 5])


def test_of_a_chosen_step_nothing_else_comes_back(disk: Disk) -> None:
    for step, score in ((3, 0.5), (4, 1.0), (5, 2.0)):
        disk.there(step, "new", score=score)
    assert disk.restore(4) == 4
    assert sorted(by_step(Store(disk.run.checkpoints))) == [4]
    with pytest.raises(CheckpointError) as raised:
        disk.restore(9)
    assert raised.value.__notes__[-1] == "it has: 3, 4, 5"


def test_a_run_that_is_finished_at_its_place_comes_back_with_its_model(disk: Disk) -> None:
    disk.there(5, "new")
    disk.finished(5)
    assert disk.restore(5) == 5
    assert not disk.run.final.exists(), "of a chosen step nothing else comes back"
    assert disk.restore() == 5
    assert disk.lines == [f"run.finished_at_destination(url={disk.place.url}/{RUN}/final)"]
    assert disk.run.is_finished()
    assert (disk.run.final / "model").read_text() == "model"
    assert (disk.run.path / "report.html").read_text() == "report.html"
    assert disk.restore() == 5
    assert len(disk.lines) == 1, "it is finished here"


def test_a_finished_run_whose_model_is_damaged_can_resume(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.there(5, "new")
    disk.finished(5)
    (disk.place.root / RUN / "final/model").write_text("other")
    assert disk.restore() == 5
    assert f"run.finished_run_not_restored(run={RUN}, error=" in caplog.text
    assert not disk.run.is_finished()
    back = {"place": disk.place.url, "was_killed": False}
    assert disk.record()["brought_back"] == back, "it had ended there"


def test_a_run_that_was_trained_on_after_its_end_is_not_finished(disk: Disk) -> None:
    disk.there(6, "new")
    disk.finished(5)
    assert disk.restore() == 6
    assert (disk.lines, disk.run.final.exists()) == ([], False)
    assert disk.record()["brought_back"]["was_killed"] is True


def trained(settings: object, *changes: dict[str, Any]) -> dict[str, Any]:
    """The values of a version with these settings, changed after step 2."""
    history = [{"when": "", "step": 2, "command": "", "changes": [*changes]}] if changes else []
    return {"identity": {"settings": settings}, "history": history}


def test_the_newest_run_of_a_purpose_is_found_unless_it_was_changed(disk: Disk) -> None:
    config = DeploymentConfig(backup={"place": disk.options.place})
    assert run_at_place(config, []) is None
    settings = result_settings(config)
    other = {**settings, "training.seed": 77}
    for number, values in enumerate(
        [
            trained(settings),
            trained(settings),
            trained(settings, RATE),
            trained(other),
            {"identity": {}},
        ]
    ):
        disk.there(3, run_id=f"2026010{number + 1}-000000-one-0000", values=values)
    assert run_at_place(config, []) == "20260102-000000-one-0000"
    assert run_at_place(config, ["learning_rate"]) == "20260103-000000-one-0000"
    assert run_at_place(config, ["seed"]) == "20260104-000000-one-0000"


def test_a_version_is_named_by_its_step_its_name_or_as_the_best(disk: Disk) -> None:
    names = {step: disk.there(step, score=score) for step, score in ((3, 0.5), (5, 2.0))}
    assert step_at_place(disk.place, RUN, "best") == 3
    assert step_at_place(disk.place, RUN, names[5]) == 5
    assert step_at_place(disk.place, RUN, "4") == 4  # whether it is there is for who fetches it
    disk.there(7, run_id="unmeasured")
    with pytest.raises(ValueError, match=r"no_measured_checkpoint_there\(run=unmeasured\)"):
        step_at_place(disk.place, "unmeasured", "best")
    for version in (None, "best", "120", names[3]):
        check_version(RUN, version)
    for version in ("", "last", "-1", "1.5"):
        malformed = rf"malformed_checkpoint_name\(run={RUN}, version={version}, best=best\)"
        with pytest.raises(ValueError, match=malformed):
            check_version(RUN, version)


def test_a_model_is_named_by_its_run() -> None:
    assert folder_of("runs/one/final") == folder_of("runs/one") == Path("runs/one")
    assert folder_of("final") == Path("final"), "a run may be called so"


def test_a_run_at_a_place_is_named_by_its_id_or_its_name(disk: Disk) -> None:
    ids = [f"2026010{n}-000000-{name}-0000" for n, name in enumerate(("one", "two", "one"), 1)]
    for run_id in ids:
        disk.there(3, run_id=run_id)
    assert runs_at_place(disk.options) == ids
    for name, expected in (
        (None, "20260103-000000-one-0000"),
        ("one", "20260103-000000-one-0000"),  # the newest of that name
        ("two", "20260102-000000-two-0000"),
        ("20260101-000000-one-0000", "20260101-000000-one-0000"),
        ("runs/20260101-000000-one-0000/final", "20260101-000000-one-0000"),
    ):
        assert named_run(disk.place, name) == expected
    unknown = rf"unknown_run_at_destination\(url={disk.place.url}, .*name=twoo,.*two-0000"
    with pytest.raises(ValueError, match=unknown):
        named_run(disk.place, "twoo")


def test_a_place_without_runs_has_its_reason(disk: Disk, tmp_path: Path) -> None:
    url = disk.place.url
    with pytest.raises(ValueError, match=rf"no_run_at_destination\(url={url}, named=, reason=\)"):
        named_run(disk.place, None)
    with pytest.raises(ValueError, match=r"named=run\.none_of_that_name\(run=one\)"):
        named_run(disk.place, "one")
    gone = FolderPlace(tmp_path / "gone")
    assert why_empty(gone) == "run.destination_folder_missing()"
    assert why_empty(disk.place) == ""
    memory = MemoryPlace()

    for error, reason in (
        (OSError(5, f"Input/output error of {'hf_' + 'aB3' * 12}"), ": Input/output error of "),
        (FileNotFoundError(2, "No such bucket"), ": No such bucket"),
        (OSError("refused"), ": refused"),
    ):
        memory.fault = Mock(side_effect=error)
        assert why_empty(memory).startswith(reason)
        assert "aB3aB3" not in why_empty(memory)


def test_a_place_that_does_not_answer_is_named_with_its_reason(disk: Disk) -> None:
    def fail() -> None:
        raise OSError(5, f"Input/output error of {'hf_' + 'aB3' * 12}")

    assert answer_of(disk.place, lambda: 7) == 7
    refusal = r"destination_not_responding\(.*reason=Input/output.*, advice=backup\."
    with pytest.raises(StorageError, match=refusal) as raised:
        answer_of(disk.place, fail)
    assert "aB3aB3" not in str(raised.value)
    assert f"(url={disk.place.url}, " in str(raised.value)


def test_a_version_that_cannot_be_read_gives_way_to_the_one_before(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2, 3):
        disk.there(step, values={"step": step})
    store = Store(Path(RUN), disk.place)
    assert [manifest.step for manifest in readable(store)] == [3, 2, 1]
    [newest] = (disk.place.root / RUN).rglob(f"{store.versions()[0]}*")
    newest.write_text("{")
    assert newest_values(disk.place, RUN) == {"step": 2}
    skipped = f"version_skipped(root={RUN}, name={store.versions()[0][:12]}, error="
    assert skipped in caplog.text
    assert newest_values(disk.place, "none") == {}


def test_a_best_version_that_cannot_be_fetched_costs_nothing(
    disk: Disk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.there(3, "new", score=0.5)
    disk.there(5, "new", score=3.0)
    whole = RunBackup.restore_run

    def fails_for_the_best(self: RunBackup, step: int | None, **given: Any) -> Path:
        if step == 3:
            raise StorageError("run.destination_not_responding", url="", reason="", advice="")
        return whole(self, step, **given)

    monkeypatch.setattr(RunBackup, "restore_run", fails_for_the_best)
    assert disk.restore() == 5
    assert "run.best_checkpoint_not_restored" in caplog.text


def test_files_of_the_run_stay_where_the_newest_version_is_here_already(disk: Disk) -> None:
    disk.there(5, "there")
    assert disk.restore() == 5
    write_record(disk.run.run_file, {"run_id": RUN, "of": "here"})
    assert disk.restore() == 5
    assert disk.record() == {"run_id": RUN, "of": "here"}
