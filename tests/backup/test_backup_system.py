"""The backup system as a script uses it: any torch model and optimizer, a place or none."""

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from infrastructure.backup.backup_system import BackupSystem, create_backup_system
from infrastructure.backup.inventory import runs_at
from infrastructure.backup.replication.status import BackupStatus
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.errors import CheckpointError, StorageError
from infrastructure.core.messages import phrase

Parts = tuple[torch.nn.Module, torch.optim.Optimizer]


def parts(width: int = 16) -> Parts:
    model = torch.nn.Sequential(
        torch.nn.Linear(8, width), torch.nn.BatchNorm1d(width), torch.nn.Dropout(0.5)
    )
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    noise = random.random() + float(np.random.rand())
    loss = (model(torch.randn(4, 8)) * noise).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "place"


@pytest.fixture
def backups(tmp_path: Path, place: Path) -> Iterator[BackupSystem]:
    with create_backup_system(tmp_path / "backups", str(place)) as system:
        yield system
    assert system.wait_ended(120.0)


def test_when_all_is_copied_nobody_writes_after_the_end(tmp_path: Path, place: Path) -> None:
    model, optimizer = parts()
    before = set(psutil.Process().children())  # of other tests
    backups = create_backup_system(tmp_path / "backups", str(place))
    backups.create_checkpoint(model, optimizer, epoch=0, step=1, loss=1.0)
    assert backups.finish(60.0).is_safe
    backups.close()
    assert set(psutil.Process().children()) <= before
    shutil.rmtree(tmp_path / "backups")


def test_the_calls_of_the_specification_work_as_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model, optimizer = parts()
    train(model, optimizer)
    backup_system = create_backup_system()
    checkpoint_path = backup_system.create_checkpoint(
        model, optimizer, epoch=10, step=1000, loss=0.5
    )
    saved = weights(model)
    backup_system.emergency_backup(model, optimizer, epoch=10, step=1000, loss=0.5)
    train(model, optimizer)
    training_state = backup_system.restore_from_checkpoint(model, optimizer)
    assert checkpoint_path.is_file()
    assert (training_state["epoch"], training_state["step"], training_state["loss"]) == (
        10,
        1000,
        0.5,
    )
    assert same(weights(model), saved)
    assert backup_system.status().state == "off"


@pytest.mark.parametrize("kind", ["AdamW", "SGD", "Adagrad", "RMSprop"])
def test_a_restored_training_goes_on_bit_for_bit(tmp_path: Path, kind: str) -> None:
    model, _ = parts()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01)
    train(model, optimizer)
    system = create_backup_system(tmp_path)
    system.create_checkpoint(model, optimizer, epoch=0, step=1, loss=1.0)
    expected = [train(model, optimizer) for _ in range(3)], weights(model)
    other, _ = parts()
    fresh = getattr(torch.optim, kind)(other.parameters(), lr=0.01)
    system.restore_from_checkpoint(other, fresh)
    losses = [train(other, fresh) for _ in range(3)]
    assert losses == expected[0]
    assert same(weights(other), expected[1])


def test_metrics_and_values_come_back_and_what_is_no_json_is_refused(tmp_path: Path) -> None:
    system = create_backup_system(tmp_path)
    system.create_checkpoint(
        *parts(), epoch=1, step=2, loss=0.1, metrics={"f1": 0.5}, values={"order": [3, 1]}
    )
    state = system.restore_from_checkpoint(*parts())
    assert (state["metrics"], state["values"]) == ({"f1": 0.5}, {"order": [3, 1]})
    with pytest.raises(ValueError, match="JSON"):
        system.create_checkpoint(*parts(), epoch=1, step=3, loss=0.1, values={"x": object()})
    assert len(system.list_backups()) == 1


def test_a_loss_that_is_not_finite_is_kept_as_evidence_and_not_restored(tmp_path: Path) -> None:
    system = create_backup_system(tmp_path)
    model, optimizer = parts()
    system.create_checkpoint(model, optimizer, epoch=0, step=1, loss=1.0)
    system.create_checkpoint(model, optimizer, epoch=0, step=2, loss=float("nan"))
    assert system.restore_from_checkpoint(model, optimizer)["step"] == 1
    assert system.restore_from_checkpoint(model, optimizer, 2)["loss"] is None


def test_a_given_step_or_path_is_restored(tmp_path: Path) -> None:
    system = create_backup_system(tmp_path)
    model, optimizer = parts()
    first = system.create_checkpoint(model, optimizer, epoch=0, step=1, loss=1.0)
    saved = weights(model)
    train(model, optimizer)
    system.create_checkpoint(model, optimizer, epoch=0, step=2, loss=1.0)
    for checkpoint in (1, first, str(first)):
        train(model, optimizer)
        assert system.restore_from_checkpoint(model, optimizer, checkpoint)["step"] == 1
        assert same(weights(model), saved)
    problem = rf"^backup\.no_checkpoint_of_step\(root={tmp_path}, step=7\)$"
    with pytest.raises(CheckpointError, match=problem):
        system.restore_from_checkpoint(model, optimizer, 7)
    newest = system.store.manifest_path(system.store.versions()[0])
    newest.write_bytes(b"?")
    assert system.restore_from_checkpoint(model, optimizer, 1)["step"] == 1
    shutil.copytree(tmp_path, tmp_path / "place/run")
    place = str(tmp_path / "place")
    elsewhere = create_backup_system(tmp_path / "elsewhere", place, run_id="run")
    found = elsewhere.restore_from_checkpoint(model, optimizer, 1)
    assert found["checkpoint_path"] == tmp_path / "elsewhere/versions" / first.name


def test_a_damaged_version_is_named_and_the_one_before_it_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    system = create_backup_system(tmp_path)
    model, optimizer = parts()
    system.create_checkpoint(model, optimizer, epoch=0, step=1, loss=1.0)
    train(model, optimizer)
    newest = system.create_checkpoint(model, optimizer, epoch=0, step=2, loss=1.0)
    newest.write_bytes(newest.read_bytes()[:-1])
    assert system.restore_from_checkpoint(model, optimizer)["step"] == 1
    skipped = f"url={system.store.root}, damage=000000000002"
    assert f"backup.skips_damaged_checkpoint({skipped}" in caplog.text
    problems = [finding.problem for finding in system.verify()]
    assert problems[0] is not None
    assert problems[1] is None


def test_what_does_not_fit_is_listed_and_nothing_is_half_loaded(tmp_path: Path) -> None:
    system = create_backup_system(tmp_path)
    system.create_checkpoint(*parts(16), epoch=0, step=1, loss=1.0)
    model, optimizer = parts(24)
    train(model, optimizer)
    before, state = weights(model), torch.get_rng_state()
    with pytest.raises(
        CheckpointError,
        match=r"name=0\.weight, .*F32\[16, 8\].*F32\[24, 8\]",
    ):
        system.restore_from_checkpoint(model, optimizer)
    assert same(weights(model), before)
    assert torch.equal(torch.get_rng_state(), state)
    fitting, _ = parts(16)
    other = torch.optim.SGD(fitting.parameters(), lr=0.1)
    before = weights(fitting)
    with pytest.raises(
        CheckpointError, match=r"backup\.optimizer_class_differs.*saved=AdamW.*current=SGD"
    ):
        system.restore_from_checkpoint(fitting, other)
    assert same(weights(fitting), before)


def test_nothing_to_restore_is_an_error_that_names_it(tmp_path: Path) -> None:
    problem = rf"^backup\.no_restorable_checkpoint\(root={tmp_path}\)$"
    with pytest.raises(CheckpointError, match=problem):
        create_backup_system(tmp_path).restore_from_checkpoint(*parts())


def test_an_emergency_backup_states_what_it_reached(backups: BackupSystem) -> None:
    model, optimizer = parts()
    result = backups.emergency_backup(model, optimizer, epoch=0, step=5, loss=1.0, seconds=60.0)
    assert (result.committed, result.confirmed, result.error) == (True, True, None)
    begin = time.monotonic()
    hasty = backups.emergency_backup(model, optimizer, epoch=0, step=6, loss=1.0, seconds=0.0)
    assert hasty.committed
    assert time.monotonic() - begin < 60.0
    entry = backups.list_backups()[0]
    assert (entry.kind, entry.step) == ("emergency", 6)


def test_an_emergency_backup_never_raises_for_a_disk_that_refuses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "backups").write_text("no directory")
    system = create_backup_system(tmp_path / "backups/store")
    result = system.emergency_backup(*parts(), epoch=0, step=1, loss=1.0)
    assert (result.committed, result.confirmed, result.path) == (False, False, None)
    assert "Not a directory" in str(result.error)
    assert f"backup.emergency_save_failed(error={result.error})" in caplog.text
    assert 0.0 < result.seconds < 60.0
    model, optimizer = parts()
    unsuitable = system.emergency_backup(
        model, optimizer, epoch=0, step=1, loss=1.0, values={"x": object()}
    )
    assert "backup.state_cannot_be_stored" in str(unsuitable.error)


@pytest.mark.parametrize(("given", "budget"), [(None, 4.0), (7.0, 7.0)])
@pytest.mark.parametrize("is_confirmed", [True, False])
def test_an_emergency_backup_waits_for_the_rest_of_its_time(
    tmp_path: Path, given: float | None, budget: float, is_confirmed: bool
) -> None:
    waited: list[float] = []

    class Ends(BackupSystem):
        def finish(self, seconds: float | None = None, look: str | None = None) -> BackupStatus:
            assert look == "", "there is no time for another look"
            assert seconds is not None
            waited.append(seconds)
            name = self.store.versions()[0] if is_confirmed else "another"
            return BackupStatus(confirmed_name=name, error="no answer")

    system = Ends(tmp_path, BackupConfig(emergency_seconds=4.0))
    begin = time.monotonic()
    result = system.emergency_backup(
        *parts(), epoch=2, step=5, loss=1.0, seconds=given, metrics={"f1": 0.5}
    )
    seconds = time.monotonic() - begin
    assert budget - seconds <= waited[0] < budget
    assert 0.0 < result.seconds <= seconds
    assert (result.committed, result.confirmed, result.error) == (True, is_confirmed, "no answer")
    found = system.restore_from_checkpoint(*parts())
    assert found == {
        "epoch": 2,
        "step": 5,
        "loss": 1.0,
        "metrics": {"f1": 0.5},
        "values": {},
        "checkpoint_path": result.path,
    }
    assert system.list_backups()[0].kind == "emergency"


def test_a_plain_checkpoint_is_a_manual_one_and_what_killed_writers_left_goes(
    tmp_path: Path,
) -> None:
    system = create_backup_system(tmp_path)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp/half").touch()
    for loss, is_healthy in ((1.0, True), (float("inf"), False), (float("nan"), False)):
        system.create_checkpoint(*parts(), epoch=0, step=1, loss=loss)
        entry = system.list_backups()[0]
        assert (entry.kind, entry.healthy) == ("manual", is_healthy)
    assert [*(tmp_path / "tmp").iterdir()] == []


def test_another_machine_restores_from_the_place_what_this_one_saved(
    backups: BackupSystem, tmp_path: Path, place: Path
) -> None:
    model, optimizer = parts()
    for step in (1, 2):
        train(model, optimizer)
        backups.create_checkpoint(model, optimizer, epoch=0, step=step, loss=1.0)
    status = backups.finish(60.0)
    assert status.is_safe
    assert "backup.step_confirmed(step=2," in status.possible_loss(time.time()).text
    expected = weights(model)
    elsewhere = create_backup_system(tmp_path / "elsewhere", str(place), run_id="backups")
    other, fresh = parts()
    assert elsewhere.restore_from_checkpoint(other, fresh)["step"] == 2
    assert same(weights(other), expected)
    assert {path.name for path in (tmp_path / "elsewhere/objects").rglob("*") if path.is_file()}
    assert elsewhere.store.newest() == (backups.store.versions()[0], [])
    assert all(finding.problem is None for finding in backups.verify())
    assert backups.list_backups()[0].places == ("here", str(place))
    train(other, fresh)  # and back: what the other machine saves comes to this one
    elsewhere.create_checkpoint(other, fresh, epoch=0, step=3, loss=1.0)
    backups.close()
    assert backups.wait_ended(120.0)
    elsewhere.finish(60.0)
    elsewhere.close()
    assert elsewhere.wait_ended(120.0)
    path = backups.restore_run()
    assert backups.store.read(path.stem).step == 3
    assert backups.restore_from_checkpoint(model, optimizer)["step"] == 3
    assert same(weights(model), weights(other))


def test_a_damaged_version_at_the_place_is_passed_over_when_it_is_fetched(
    backups: BackupSystem, tmp_path: Path, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, optimizer = parts()
    for step in (1, 2):
        train(model, optimizer)
        path = backups.create_checkpoint(model, optimizer, epoch=0, step=step, loss=1.0)
        backups.finish(60.0)
    manifest = backups.store.read(path.stem)
    pack = manifest.packs[manifest.tensors["model/0.weight"].pack].hash
    (damaged,) = (place / "backups/objects").rglob(f"{pack}*")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    elsewhere = create_backup_system(tmp_path / "elsewhere", str(place), run_id="backups")
    assert elsewhere.restore_from_checkpoint(*parts())["step"] == 1
    assert "backup.skips_damaged_checkpoint" in caplog.text


def test_a_place_without_a_version_is_named(tmp_path: Path, place: Path) -> None:
    system = create_backup_system(tmp_path / "backups", str(place))
    with pytest.raises(CheckpointError, match=r"backup\.no_intact_checkpoint\("):
        system.restore_run()


def test_the_runs_of_a_place_are_those_with_a_version(backups: BackupSystem, place: Path) -> None:
    from infrastructure.backup.backends import open_place

    assert runs_at(open_place(str(place))) == []
    backups.create_checkpoint(*parts(), epoch=0, step=1, loss=1.0)
    backups.finish(60.0)
    (place / "empty").mkdir()
    (place / "note.txt").write_text("not a run")
    assert runs_at(open_place(str(place))) == ["backups"]


def test_prune_removes_what_newer_ones_replace_here_and_there(
    backups: BackupSystem, place: Path
) -> None:
    model, optimizer = parts()
    for step in range(1, 4):
        train(model, optimizer)
        backups.create_checkpoint(model, optimizer, epoch=0, step=step, loss=1.0)
        backups.finish(60.0)
    backups.close()
    assert backups.wait_ended(120.0)
    pruned = backups.prune()
    assert pruned[0] == phrase("backup.checkpoints_removed_here", count=0)
    assert any("backup.unreferenced_objects_remain" in text for text in pruned)
    assert len(list((place / "backups/versions").iterdir())) == 2
    assert all(finding.problem is None for finding in backups.verify())


def test_verify_reports_a_place_that_is_away(tmp_path: Path) -> None:
    system = create_backup_system(tmp_path / "backups", str(tmp_path / "not/mounted"))
    findings = system.verify()
    assert all(finding.where != "here" for finding in findings)


def test_options_that_there_are_not_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep"):
        create_backup_system(tmp_path, keep=1)
    with pytest.raises(ValueError):
        create_backup_system(tmp_path, **{"kep": 3})


def publish(system: BackupSystem, folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return system.publish(folder, 120.0)


def test_a_finished_model_is_published_with_its_sums_and_never_over_another(
    tmp_path: Path, place: Path
) -> None:
    final = tmp_path / "final"
    with create_backup_system(tmp_path / "backups", str(place)) as system:
        first = publish(system, final, {"config.json": "{}", "tokenizer/vocab.txt": "a"})
        assert first == f"{place}/backups/final"
        sums = (place / "backups/final/SHA256SUMS").read_text()
        assert sums.splitlines()[1].endswith("  tokenizer/vocab.txt")
        assert publish(system, final, {}) == first
        second = publish(system, final, {"config.json": '{"a": 1}'})
        assert second.startswith(f"{place}/backups/final-")
        assert (place / "backups/final/config.json").read_text() == "{}"
        assert publish(system, final, {}) == second
    assert system.wait_ended(120.0)


def test_a_publication_that_was_broken_off_goes_on(tmp_path: Path, place: Path) -> None:
    final = tmp_path / "final"
    with create_backup_system(tmp_path / "backups", str(place)) as system:
        publish(system, final, {"config.json": "{}", "weights": "w" * 100})
        (place / "backups/final/SHA256SUMS").unlink()
        (place / "backups/final/weights").unlink()
        assert system.publish(final, 120.0) == f"{place}/backups/final"
    assert system.wait_ended(120.0)
    assert (place / "backups/final/weights").read_text() == "w" * 100


def test_an_empty_folder_is_not_published(tmp_path: Path, place: Path) -> None:
    system: Any = create_backup_system(tmp_path / "backups", str(place))
    with pytest.raises(ValueError, match=r"backup\.no_files_to_publish"):
        system.publish(tmp_path / "nothing")
    with pytest.raises(StorageError, match=r"backup\.no_destination"):
        create_backup_system(tmp_path / "backups").publish(tmp_path)
