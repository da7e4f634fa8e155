"""The same command after one file of a run was damaged: it comes back, or is named."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from infrastructure.backup.format.store import Store
from infrastructure.backup.repair.run_files_repair import SEAL, RunFileRepair, read_seal, seal_of
from infrastructure.backup.state.run_files import read_run_files
from infrastructure.commands.main import main
from infrastructure.commands.resume import resume
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.checksums import damaged_files, read_record, write_record
from infrastructure.core.errors import DamagedFileError, StorageError
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.deployment.model_repair import repair_model
from infrastructure.evaluation.prompting import answer_questions
from infrastructure.run.directory import RunDirectory
from infrastructure.run.lock import only_trainer_of
from infrastructure.run.repair import (
    hash_or_none,
    repair_records,
    repair_records_of,
    repair_run,
    write_seal,
)
from tests.deployment.runs import deploy, losses, small_settings
from tests.deployment.test_resuming import resumed_from, stop_after
from tests.slow import slow_but

STEPS, STOPPED_AT = 3, 2
NOTES = ("note: ", "deployment.report_rewritten(")  # how a line on a repair begins


def config_of(folder: Path, **sections: Any) -> DeploymentConfig:
    settings = small_settings(folder, max_steps=STEPS, metrics_sinks=["jsonl", "csv"])
    return DeploymentConfig(**{**settings, **sections})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a finished run, and the same run as it was when it was stopped."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, STOPPED_AT)
        run, _ = deploy(config_of(folder))
    shutil.copytree(run, folder / "stopped")
    again, _ = deploy(config_of(folder))
    assert again == run
    run.rename(folder / "finished")
    (folder / "name").write_text(run.name)
    yield folder
    shutil.rmtree(folder)


def put(made: Path, state: str) -> Path:
    """That state as the one run of the folder."""
    run = made / "runs" / (made / "name").read_text()
    while True:  # a helper of the test before may still write into the folders
        for name in ("runs", "place"):
            while (made / name).exists():
                shutil.rmtree(made / name, ignore_errors=True)
        with suppress(FileExistsError):
            shutil.copytree(made / state, run)
            return run


@pytest.fixture
def finished(made: Path) -> Path:
    return put(made, "finished")


@pytest.fixture
def stopped(made: Path) -> Path:
    return put(made, "stopped")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])


DAMAGES = (flip, cut, Path.unlink)
Damage = Callable[[Path], None]


def damaged_in_turn(names: list[str]) -> list[Any]:
    """Each file with each damage; quick is one of each file, and each damage in turn."""
    quick = [(name, DAMAGES[n % len(DAMAGES)]) for n, name in enumerate(names)]
    return slow_but(quick, [(name, damage) for name in names for damage in DAMAGES])


def same_command(folder: Path, **sections: Any) -> str:
    lines: list[str] = []
    TrainingDeployment(config_of(folder, **sections), say=lines.append).run()
    return "\n".join(lines)


def assert_end(made: Path, run: Path) -> None:
    """The model and the history are those of the undisturbed run."""
    assert damaged_files(run / "final") == []
    for name in ("model.safetensors", "tokenizer.json", "SHA256SUMS"):
        whole = (made / "finished" / "final" / name).read_bytes()
        assert (run / "final" / name).read_bytes() == whole
    assert losses(run) == losses(made / "finished")
    read_record(run / "run.json")
    read_record(run / "summary.json")


@pytest.mark.parametrize(
    ("name", "damage"),
    damaged_in_turn(
        [
            *("run.json", "final/model.safetensors", "final/SHA256SUMS", "final/config.json"),
            *("tokenizer/tokenizer.json", "metrics.jsonl", "metrics.csv", "report.html"),
            *("logs/system/system.jsonl", "before.json"),
        ]
    ),
)
def test_a_finished_run(made: Path, finished: Path, name: str, damage: Damage) -> None:
    intact = (finished / name).read_bytes()
    damage(finished / name)
    output = same_command(made)
    mended = [line for line in output.splitlines() if line.startswith(NOTES) and name in line]
    assert len(mended) == 1, output
    assert f"deployment.run_finished_before(run_id={finished.name}, " in output
    assert_end(made, finished)
    if name not in ("report.html", "logs/system/system.jsonl"):
        assert (finished / name).read_bytes() == intact
    again = same_command(made).splitlines()
    assert not [line for line in again if line.startswith(NOTES)]  # said once


@pytest.mark.parametrize(
    ("name", "damage"),
    damaged_in_turn(["tokenizer/tokenizer.json", "metrics.jsonl", "run.json"]),
)
def test_a_stopped_run(made: Path, stopped: Path, name: str, damage: Damage) -> None:
    damage(stopped / name)
    output = same_command(made)
    assert f"backup.run_file_restored(path={name}, " in output
    assert resumed_from(stopped, STOPPED_AT) in output
    assert_end(made, stopped)


def pack_path(run: Path, tensor_class: str) -> Path:
    """The newest version's object of this class."""
    store = Store(run / "checkpoints")
    manifest = store.read(store.versions()[0])
    place = next(p for n, p in manifest.tensors.items() if n.startswith(tensor_class))
    return store.objects.path_of(manifest.packs[place.pack].hash)


def test_a_damaged_copy_of_run_files_ends_nothing(made: Path, stopped: Path) -> None:
    flip(pack_path(stopped, "files/tokenizer/"))
    output = same_command(made)
    assert "backup.object_not_needed_to_resume" in output
    assert resumed_from(stopped, STOPPED_AT) in output
    assert_end(made, stopped)


def test_a_damaged_random_state_ends_only_its_own_version(made: Path, stopped: Path) -> None:
    flip(pack_path(stopped, "random/"))
    output = same_command(made)
    assert "(step 2, random)" in output
    assert resumed_from(stopped, STOPPED_AT - 1) in output
    assert_end(made, stopped)


@pytest.mark.parametrize("tensor_class", slow_but(["model/"], ["model/", "optimizer/", "files/"]))
def test_a_damaged_object_comes_back_from_the_place(
    made: Path, stopped: Path, tensor_class: str
) -> None:
    shutil.copytree(stopped / "checkpoints", made / "place" / stopped.name)
    path = pack_path(stopped, tensor_class)
    intact = path.read_bytes()
    flip(path)
    output = same_command(made, backup={"place": str(made / "place")})
    damaged = f"hash={path.name[:12]}, problem=backup.object_bytes_changed()"
    assert f"backup.object_problem({damaged})" in output
    assert f"where={made / 'place'})" in output
    assert resumed_from(stopped, STOPPED_AT) in output
    assert not path.exists() or path.read_bytes() == intact
    assert_end(made, stopped)


def test_a_record_that_is_nowhere_is_written_anew(made: Path, stopped: Path) -> None:
    """All copies of run.json are gone: the versions themselves say which training this is."""
    store = Store(stopped / "checkpoints")
    for name in store.versions():
        manifest = store.read(name)
        pack = manifest.packs[manifest.tensors["files/run.json@000000000"].pack]
        store.objects.path_of(pack.hash).unlink(missing_ok=True)
    (stopped / "run.json").unlink()
    output = same_command(made)
    assert "deployment.run_record_rewritten" in output
    assert_end(made, stopped)


def test_a_damaged_record_is_never_another_training(made: Path, stopped: Path) -> None:
    """One bit in the learning rate would be a run of another purpose: a new one at step 0."""
    text = (stopped / "run.json").read_text()
    changed = text.replace('"max_steps": 3', '"max_steps": 4')
    assert changed != text
    (stopped / "run.json").write_text(changed)
    assert resumed_from(stopped, STOPPED_AT) in same_command(made)
    assert len(list((made / "runs").iterdir())) == 1


def test_a_report_that_a_kill_prevented_is_written(made: Path, finished: Path) -> None:
    """Killed after the summary and before the report: there is no seal, and an old page."""
    summary = read_record(finished / "summary.json")
    del summary["files"]
    write_record(finished / "summary.json", summary)
    (finished / "report.html").write_text("<p>running")
    assert "deployment.report_rewritten" in same_command(made)
    assert "finished" in (finished / "report.html").read_text()
    again = same_command(made).splitlines()
    assert not [line for line in again if line.startswith(NOTES)]


def test_the_model_comes_back_from_the_place(made: Path, finished: Path) -> None:
    shutil.copytree(finished / "final", made / "place" / finished.name / "final")
    record = json.loads((finished / "run.json").read_text())
    shutil.rmtree(finished / "checkpoints" / "objects")
    flip(finished / "final" / "model.safetensors")
    place = {"backup": {"place": str(made / "place")}}
    output = same_command(made, **place)
    restored = f"name=model.safetensors, source={made / 'place'}"
    assert f"deployment.model_file_restored({restored}" in output
    assert record["run_id"] == finished.name
    assert f"backup.finished_run_partly_confirmed(run={finished.name}, " in output
    assert_end(made, finished)


def test_what_cannot_be_brought_back_is_named(made: Path, finished: Path) -> None:
    shutil.rmtree(finished / "checkpoints" / "objects")
    flip(finished / "final" / "model.safetensors")
    output = same_command(made)
    assert "deployment.model_not_rebuilt" in output
    with pytest.raises(
        DamagedFileError,
        match=r"models\.checksum_mismatch.*files=model\.safetensors.*sums=SHA256SUMS",
    ):
        answer_questions(finished, ["Reverse 101"])


def test_a_damaged_model_is_repaired_before_it_is_read(
    made: Path, finished: Path, caplog: pytest.LogCaptureFixture
) -> None:
    intact = (finished / "final" / "model.safetensors").read_bytes()
    flip(finished / "final" / "model.safetensors")
    repair_model(finished)
    assert "deployment.model_rebuilt" in caplog.text
    assert (finished / "final" / "model.safetensors").read_bytes() == intact


def test_train_resume_finds_a_run_without_its_record(
    made: Path, stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (stopped / "run.json").unlink()
    assert resume(stopped.name, str(made / "runs")) == 0
    assert "backup.run_file_restored" in capsys.readouterr().out
    assert_end(made, stopped)


def test_exporting_takes_the_tokenizer_that_was_written(
    made: Path, stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(stopped / "tokenizer" / "tokenizer.json")
    out = str(tmp_path / "out")
    assert main(["export", stopped.name, out, "--output", str(made / "runs")]) == 0
    assert "backup.run_file_restored" in capsys.readouterr().err
    whole = (made / "finished" / "final" / "tokenizer.json").read_bytes()
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == whole


def test_a_run_that_is_trained_right_now_is_left_alone(made: Path, finished: Path) -> None:
    flip(finished / "final" / "config.json")
    with only_trainer_of(finished):
        repair_model(finished)
    assert damaged_files(finished / "final") == ["config.json"]


def test_a_damaged_summary_does_not_decide_whether_a_run_is_finished(finished: Path) -> None:
    assert RunDirectory(finished).is_finished()
    flip(finished / "summary.json")
    assert not RunDirectory(finished).is_finished()


def test_what_nothing_restores_is_sealed_as_it_is_and_reported_once(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "20260101-000000-a-0000")
    run.path.mkdir()
    Store(run.checkpoints).commit({}, {"step": 1}, step=1)
    write_record(run.run_file, {"run_id": run.run_id})
    for name in ("metrics.jsonl", "metrics.csv"):
        (run.path / name).write_text("{}\n")
    sealed = seal_of(run.path)
    write_record(run.summary_file, {"status": "finished", SEAL: sealed})
    (run.path / "metrics.csv").write_text("{}{}\n")
    lines: list[str] = []
    for _ in range(2):
        repair_run(run, BackupConfig(), lines.append)
        assert lines == ["note: backup.file_damaged_after_end(path=metrics.csv)"]
    now = hash_or_none(run.path / "metrics.csv")
    assert now is not None
    assert read_seal(run.path) == {**sealed, "metrics.csv": now}
    assert now != sealed["metrics.csv"]


# -- without training ------------------------------------------------------------------------------


def small_run(folder: Path, name: str = "20260101-000000-a-0000", steps: int = 1) -> RunDirectory:
    """A run with a record, a tokenizer, and versions that hold both."""
    run = RunDirectory(folder / name)
    run.tokenizer.mkdir(parents=True)
    (run.tokenizer / "tokenizer.json").write_text("{}")
    write_record(run.run_file, {"run_id": run.run_id})
    for step in range(1, steps + 1):
        Store(run.checkpoints).commit(read_run_files(run.path), {"step": step}, step=step)
    return run


def test_records_of_all_runs_come_back_from_here_or_from_the_place(tmp_path: Path) -> None:
    output, lines = tmp_path / "runs", list[str]()
    runs = [small_run(output, f"2026010{n}-000000-a-0000") for n in range(1, 6)]
    here, there, held, _, nowhere = runs
    (tmp_path / "place").mkdir()
    shutil.move(there.checkpoints, tmp_path / "place" / there.run_id / "")
    shutil.rmtree(nowhere.checkpoints / "objects")
    shutil.copytree(tmp_path / "place" / there.run_id / "versions", there.checkpoints / "versions")
    for run in (here, there, held, nowhere):
        run.run_file.write_text("{")
    options = BackupConfig(place=str(tmp_path / "place"))
    with only_trainer_of(held.path):
        repair_records(output, options, lines.append)
    assert [run.has_record() for run in runs] == [True, True, False, True, False]
    assert [line.partition("(path=run.json, ")[0] for line in lines] == [
        f"note: run {here.run_id}: backup.run_file_restored",
        f"note: run {there.run_id}: backup.run_file_restored",
        f"note: run {nowhere.run_id}: backup.run_file_lost",
    ]
    held.run_file.unlink()
    repair_records(output, BackupConfig(), lines.append)
    assert held.has_record()


def test_a_record_that_cannot_be_repaired_leaves_those_of_other_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = (small_run(tmp_path, f"2026010{n}-000000-a-0000") for n in (1, 2))
    for run in (bad, good):
        run.run_file.unlink()
    whole = RunFileRepair.restore

    def restore(self: RunFileRepair, path: str) -> Any:
        if self.directory == bad.path:
            raise OSError(28, "No space left on device")
        return whole(self, path)

    monkeypatch.setattr(RunFileRepair, "restore", restore)
    lines: list[str] = []
    repair_records(tmp_path, BackupConfig(), lines.append)
    error = "error=[Errno 28] No space left on device"
    assert lines[0] == f"run.run_file_unreadable(run={bad.run_id}, run_file=run.json, {error})"
    assert (len(lines), good.has_record()) == (2, True)


def test_a_run_is_repaired_from_its_own_versions_unless_it_is_trained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = small_run(tmp_path)
    (run.tokenizer / "tokenizer.json").write_text("[]")
    run.run_file.write_text("{")
    with only_trainer_of(run.path):
        repair_records_of(run)
    assert (run.has_record(), caplog.text) == (False, "")
    repair_records_of(run)
    assert (run.has_record(), (run.tokenizer / "tokenizer.json").read_text()) == (True, "{}")
    assert caplog.text.count("backup.run_file_restored(path=") == 2
    shutil.rmtree(run.checkpoints)
    run.run_file.unlink()
    repair_records_of(run)
    assert not run.has_record()


def test_a_tokenizer_that_is_lost_is_removed_and_no_longer_sealed(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    (run.path / "metrics.jsonl").write_text("{}\n")
    sealed = seal_of(run.path)
    write_record(run.summary_file, {"status": "finished", SEAL: sealed})
    Store(run.checkpoints).commit({}, {}, step=2)
    lines: list[str] = []
    repair_run(run, BackupConfig(), lines.append)
    assert (lines, read_seal(run.path)) == ([], sealed)
    (run.tokenizer / "tokenizer.json").write_text("[]")
    repair_run(run, BackupConfig(), lines.append)
    assert lines == ["note: backup.file_damaged_after_end(path=tokenizer/tokenizer.json)"]
    assert not run.tokenizer.exists()
    assert read_seal(run.path) == {"metrics.jsonl": sealed["metrics.jsonl"]}


def test_a_seal_that_cannot_be_written_is_an_error_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(tmp_path)
    write_record(run.summary_file, {"status": "finished"})
    write_seal(run, {"a": "1", "b": None})
    assert read_record(run.summary_file) == {"status": "finished", SEAL: {"a": "1"}}
    run.summary_file.write_text("{")
    write_seal(run, {"a": "2"})
    assert run.summary_file.read_text() == "{", "it is written again when the run ends"
    run.summary_file.unlink()
    refusal = rf"run\.summary_not_writable\(summary_file={run.summary_file}, error="
    with pytest.raises(StorageError, match=refusal):
        write_seal(run, {"a": "2"})
    assert hash_or_none(run.summary_file) is None
