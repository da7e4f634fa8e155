"""The damaged model and report of a finished run come back, or are named."""

import logging
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from infrastructure.backup.format.store import Store
from infrastructure.backup.repair.run_files_repair import SEAL, read_seal, seal_of
from infrastructure.backup.state.run_files import read_run_files
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.checksums import damaged_files, write_record, write_sums
from infrastructure.deployment import model_repair
from infrastructure.deployment.model_repair import repair_finished, repair_model
from infrastructure.run.directory import RunDirectory
from infrastructure.run.lock import only_trainer_of

FILES = {"a": "first", "b": "second", "deep/c": "third"}
SUMS = "final/SHA256SUMS"
FROM_CHECKPOINT = {**FILES, "a": "rounded otherwise"}  # what an export on this machine gives


def fill(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    write_sums(folder)


def contents(folder: Path) -> dict[str, str]:
    assert damaged_files(folder) == []
    found = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    return {name: path.read_text() for name, path in found.items() if name != "SHA256SUMS"}


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The files that an export of the checkpoint of step 4 writes."""
    files = dict(FILES)

    def export(of: RunDirectory, checkpoint: Path, folder: Path) -> None:
        assert Store(of.checkpoints).read(checkpoint.stem).step == 4
        assert not folder.exists(), "what a killed repair left is removed"
        fill(folder, files)

    monkeypatch.setattr(model_repair, "export_checkpoint", export)
    return files


@pytest.fixture
def run(tmp_path: Path, exported: dict[str, str]) -> RunDirectory:
    """A finished run with the model of its step 4, and a destination on the disk."""
    (tmp_path / "disk").mkdir()
    run = RunDirectory(tmp_path / "20260101-000000-a-0000")
    run.path.mkdir()
    fill(run.final, FILES)
    fill(run.path / model_repair.REMADE, {"x": "left by a kill"})
    config = DeploymentConfig(backup={"place": str(tmp_path / "disk")})
    write_record(run.run_file, {"run_id": run.run_id, "configuration": config.to_dict()})
    Store(run.checkpoints).commit(read_run_files(run.path), {"step": 4}, step=4)
    (run.path / "report.html").write_text("the report")
    summary = {"status": "finished", "steps": 4, SEAL: seal_of(run.path)}
    write_record(run.summary_file, summary)
    return run


def repaired(run: RunDirectory, *, has_place: bool = False) -> list[str]:
    """The lines of a repair, and that there is nothing left to repair."""
    place = str(run.path.parent / "disk") if has_place else None
    lines: list[str] = []
    repair_finished(run, BackupConfig(place=place), lines.append)
    is_rebuilt = any("rebuilt(" in line for line in lines)
    assert (run.path / model_repair.REMADE).exists() is not is_rebuilt
    again: list[str] = []
    repair_finished(run, BackupConfig(place=place), again.append)
    is_lost = any("not_rebuilt" in line for line in lines)
    assert again == (lines if is_lost else [])
    return lines


def damage(run: RunDirectory, names: Iterable[str]) -> None:
    for name in names:
        (run.final / name).write_text("torn")


def restored(run: RunDirectory, name: str) -> str:
    where = f"name={name}, source={run.path.parent / 'disk'}"
    return f"note: deployment.model_file_restored({where})"


def rebuilt(names: str) -> str:
    return f"note: deployment.model_rebuilt(damage={names} was damaged, step=4)"


def test_an_intact_model_stays(run: RunDirectory) -> None:
    before = read_seal(run.path)
    assert repaired(run) == []
    assert (contents(run.final), read_seal(run.path)) == (FILES, before)


@pytest.mark.parametrize("folder", ["final", "final-12345678"])
def test_damaged_files_come_from_the_destination(run: RunDirectory, folder: str) -> None:
    there = run.path.parent / "disk" / run.run_id
    fill(there / "final", {**FILES, "a": "of another model"})
    fill(there / folder, FILES)
    damage(run, ["a", "deep/c"])
    sealed = read_seal(run.path)
    assert repaired(run, has_place=True) == [restored(run, "a"), restored(run, "deep/c")]
    assert (contents(run.final), read_seal(run.path)) == (FILES, sealed)


def test_files_of_other_folders_and_other_bytes_are_not_taken(
    run: RunDirectory, exported: dict[str, str]
) -> None:
    there = run.path.parent / "disk" / run.run_id
    fill(there / "finals", FILES)
    fill(there / "final", {**FILES, "a": "of another model"})
    (there / "final/deep/c").unlink()
    damage(run, ["a", "b", "deep/c"])
    lines = [restored(run, "b"), rebuilt("final/a, final/deep/c")]
    assert repaired(run, has_place=True) == lines
    assert contents(run.final) == FILES


def test_a_damaged_copy_replaces_nothing(run: RunDirectory) -> None:
    """If the file cannot be rebuilt either, what is here stays as it is."""
    write_record(run.summary_file, {"status": "finished", "steps": 5, SEAL: seal_of(run.path)})
    there = run.path.parent / "disk" / run.run_id
    fill(there / "final", {**FILES, "a": "of another model"})
    fill(there / "final-12345678", {**FILES, "a": "FIRST"})
    damage(run, ["a"])
    (line,) = repaired(run, has_place=True)
    assert line.startswith("note: deployment.model_not_rebuilt(damage=final/a was damaged, ")
    assert {name: (run.final / name).read_text() for name in FILES} == {**FILES, "a": "torn"}


@pytest.mark.parametrize("is_same", [True, False])
def test_damaged_files_come_from_the_checkpoint(
    run: RunDirectory, exported: dict[str, str], is_same: bool
) -> None:
    """Other bytes than before replace the whole model, and count from then on."""
    exported.update({"b": "also otherwise"} if is_same else FROM_CHECKPOINT)
    (run.final / "added").write_text("by the user")
    damage(run, ["a", "deep/c"])
    sealed = read_seal(run.path)
    assert repaired(run) == [rebuilt("final/a, final/deep/c")]
    expected = {**FILES, "added": "by the user"} if is_same else FROM_CHECKPOINT
    assert contents(run.final) == expected
    now = read_seal(run.path)
    assert now == seal_of(run.path)
    assert (now == sealed) is is_same
    assert now["report.html"] == sealed["report.html"]


def test_a_model_without_a_seal_is_rebuilt_without_one(
    run: RunDirectory, exported: dict[str, str]
) -> None:
    write_record(run.summary_file, {"status": "finished", "steps": 4})
    exported.update(FROM_CHECKPOINT)
    damage(run, ["a"])
    repair_model(run.path)
    assert (contents(run.final), read_seal(run.path)) == (FROM_CHECKPOINT, {})


@pytest.mark.parametrize("text", ["torn", "", None])
def test_damaged_checksums_are_computed_anew_only_of_intact_files(
    run: RunDirectory, text: str | None
) -> None:
    def damage_sums() -> None:
        if text is None:
            (run.path / SUMS).unlink()
        else:
            (run.path / SUMS).write_text(text)

    sealed = read_seal(run.path)
    damage_sums()
    written = f"note: deployment.checksums_rewritten(file={SUMS})"
    assert repaired(run) == [written]
    assert (contents(run.final), read_seal(run.path)) == (FILES, sealed)
    damage_sums()
    damage(run, ["b"])
    there = run.path.parent / "disk" / run.run_id
    fill(there / "final", {"x": "of another model"})
    fill(there / "final-12345678", FILES)
    assert repaired(run, has_place=True) == [written, restored(run, "b")]
    assert (contents(run.final), read_seal(run.path)) == (FILES, sealed)
    damage_sums()
    damage(run, ["b"])
    assert repaired(run) == [rebuilt(SUMS)]
    assert (contents(run.final), read_seal(run.path)) == (FILES, sealed)


@pytest.mark.parametrize("text", ["torn", "", None])
def test_checksums_without_a_seal(run: RunDirectory, text: str | None) -> None:
    """A model of an older version of Temper has none, and is left alone."""
    write_record(run.summary_file, {"status": "finished", "steps": 4})
    damage(run, ["a"])
    if text is None:
        (run.path / SUMS).unlink()
        repair_model(run.path)
        assert (run.final / "a").read_text() == "torn"
        assert not (run.path / SUMS).exists()
        return
    (run.path / SUMS).write_text(text)
    repair_model(run.path)
    assert contents(run.final) == FILES


def test_what_cannot_be_rebuilt_stays_and_is_named(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_record(run.summary_file, {"status": "finished", "steps": 5, SEAL: seal_of(run.path)})
    damage(run, ["b"])
    lost = "note: deployment.model_not_rebuilt(damage=final/b was damaged, reason="
    assert repaired(run) == [f"{lost}deployment.checkpoint_no_longer_exists(step=5))"]

    def fail(of: RunDirectory, checkpoint: Path, folder: Path) -> None:
        fill(folder, FILES)
        raise OSError("the disk is full")

    write_record(run.summary_file, {"status": "finished", "steps": 4, SEAL: seal_of(run.path)})
    monkeypatch.setattr(model_repair, "export_checkpoint", fail)
    assert repaired(run) == [f"{lost}the disk is full)"]
    assert {name: (run.final / name).read_text() for name in FILES} == {**FILES, "b": "torn"}


@pytest.mark.parametrize("which", ["", "final", "link"])
def test_a_model_is_repaired_under_each_of_its_paths(
    run: RunDirectory,
    which: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """From the destination of its record."""
    fill(run.path.parent / "disk" / run.run_id / "final", FILES)
    damage(run, ["a"])
    monkeypatch.setenv("HOME", str(run.path.parent))
    (run.path.parent / "link").symlink_to(run.final)
    with only_trainer_of(run.path):
        repair_model(run.path)
    assert not caplog.messages, "a run that is being trained is left alone"
    repair_model(Path("~", "link") if which == "link" else run.path / which)
    assert caplog.messages == [restored(run, "a").removeprefix("note: ")]
    assert contents(run.final) == FILES
    damage(run, ["a"])
    run.run_file.write_text("torn")
    repair_model(run.path)
    assert contents(run.final) == FILES, "the lock is free again"
    assert run.has_record()
    assert caplog.messages[-1] == caplog.messages[0], "the record comes first"


@pytest.mark.parametrize("record", [None, {"enable_backups": False}])
def test_a_run_without_a_known_destination_is_repaired_from_its_checkpoint(
    run: RunDirectory, record: dict[str, Any] | None, caplog: pytest.LogCaptureFixture
) -> None:
    fill(run.path.parent / "disk" / run.run_id / "final", FILES)
    config = DeploymentConfig(backup={"place": str(run.path.parent / "disk")}, **(record or {}))
    configuration = {} if record is None else {"configuration": config.to_dict()}
    write_record(run.run_file, {"run_id": run.run_id, **configuration})
    damage(run, ["a"])
    repair_model(run.path)
    assert caplog.messages == [rebuilt("final/a").removeprefix("note: ")]


def test_folders_that_are_no_runs_with_a_model_are_left_alone(
    run: RunDirectory, tmp_path: Path
) -> None:
    (tmp_path / "plain/final").mkdir(parents=True)
    shutil.rmtree(run.final)
    for path in (tmp_path / "plain", tmp_path / "plain/final", tmp_path / "missing", run.path):
        before = sorted(tmp_path.rglob("*"))
        repair_model(path)
        assert sorted(tmp_path.rglob("*")) == before


def test_a_run_that_is_in_use_or_not_finished_keeps_its_model(run: RunDirectory) -> None:
    damage(run, ["a"])
    lines: list[str] = []
    with only_trainer_of(run.path):
        repair_finished(run, BackupConfig(), lines.append)
    write_record(run.summary_file, {"status": "stopped", "steps": 4})
    repair_finished(run, BackupConfig(), lines.append)
    assert lines == []
    assert (run.final / "a").read_text() == "torn"
    assert (run.path / "report.html").read_text() == "the report"
    with only_trainer_of(run.path):
        pass  # the lock is free again


@pytest.mark.parametrize("text", ["another page", None])
@pytest.mark.parametrize("has_seal", [True, False])
def test_a_report_is_written_again(
    run: RunDirectory,
    text: str | None,
    has_seal: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sealed = seal_of(run.path) if has_seal else {}
    (run.path / "metrics.csv").write_text("step\n")
    seal = {SEAL: sealed} if has_seal else {}
    write_record(run.summary_file, {"status": "finished", "steps": 4, **seal})
    (run.path / "report.html").unlink()
    if text is not None:
        (run.path / "report.html").write_text(text)

    def fail(path: Path) -> None:
        raise KeyError("loss")

    with monkeypatch.context() as patch:
        patch.setattr(model_repair, "write_report", fail)
        lines: list[str] = []
        repair_finished(run, BackupConfig(), lines.append)
    assert (lines, read_seal(run.path)) == ([], sealed)
    warned = "deployment.file_not_written(file=report.html, error=KeyError('loss'))"
    assert caplog.record_tuples[-1][1:] == (logging.WARNING, warned)
    assert repaired(run) == ["deployment.report_rewritten(file=report.html)"]
    assert "</html>" in (run.path / "report.html").read_text()
    now = seal_of(run.path)
    expected = {**sealed, "report.html": now["report.html"]} if has_seal else now
    assert read_seal(run.path) == expected
