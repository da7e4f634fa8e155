"""The backup of one run by itself: what is damaged comes back, and which place is its own."""

import json
import re
import shutil
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infrastructure.backup import run_backup
from infrastructure.backup.backends import open_place
from infrastructure.backup.backends.place_identity import FOLDER
from infrastructure.backup.format.lineage import Lineage
from infrastructure.backup.format.retention import Retention
from infrastructure.backup.inventory import VerifiedVersion
from infrastructure.backup.repair.run_repair import Outcome
from infrastructure.backup.replication import copier_client
from infrastructure.backup.replication.claims import Claims
from infrastructure.backup.replication.copier_process import LOOK, CopierSettings
from infrastructure.backup.replication.folder_upload import Publication
from infrastructure.backup.replication.remote_session import RemoteSession
from infrastructure.backup.replication.status import (
    STATES,
    BackupStatus,
    read_status,
    write_status,
)
from infrastructure.backup.run_backup import (
    ENDS_SECONDS,
    RunBackup,
    last_place,
    place_options,
    refuse_unreachable_place,
)
from infrastructure.backup.state.run_files import read_run_files
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.errors import StorageError
from tests.backup.replication.test_copier_client import FakeProcess
from tests.faults.drive_model import Clock
from tests.faults.store_history import tensors_at

RUN = "run-1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run whose two versions lie at a place, too."""
    place = tmp_path / "place"
    place.mkdir()
    backup = RunBackup(tmp_path / "run/checkpoints", run_id=RUN)
    for step in (1, 2):
        backup.store.commit(tensors_at(step), {}, step=step)
    shutil.copytree(backup.store.root, place / RUN)
    return tmp_path


def backup_of(folder: Path, place: str | None = "place") -> RunBackup:
    options = BackupConfig(place=None if place is None else str(folder / place))
    return RunBackup(folder / "run/checkpoints", options, run_id=RUN)


def damage(backup: RunBackup) -> None:
    """Flip a bit of each object."""
    for path in [*backup.store.root.glob("objects/*/*")]:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


def test_what_is_damaged_here_comes_back_from_the_place(folder: Path) -> None:
    backup = backup_of(folder)
    assert backup.repair() == []
    damage(backup)
    repairs = backup.repair()
    assert {repair.outcome for repair in repairs} == {Outcome.REPAIRED}
    newest = backup.store.versions()[0]
    backup.store.verify(backup.store.read(newest))
    assert backup.repair() == []


def test_without_a_place_what_is_damaged_is_named(folder: Path) -> None:
    backup = backup_of(folder, place=None)
    damage(backup)
    assert Outcome.LOST in {repair.outcome for repair in backup.repair()}


def test_a_store_that_is_gone_comes_back_where_a_version_was_confirmed(folder: Path) -> None:
    """Where nothing was, there is nothing to look for at a place."""
    whole = backup_of(folder)
    name = whole.store.versions()[0]
    shutil.rmtree(whole.store.root)
    assert backup_of(folder).repair() == []
    assert not whole.store.versions()
    status = BackupStatus(place=str(folder / "place"), confirmed_name=name, confirmed_step=2)
    whole.store.root.mkdir(parents=True)
    write_status(whole.status_path, status)
    assert backup_of(folder, place=None).repair() == []
    write_status(whole.status_path, replace(status, place="another"))
    assert backup_of(folder).repair() == []
    write_status(whole.status_path, status)
    assert backup_of(folder).repair()
    backup = backup_of(folder)
    assert backup.store.versions() == [name]
    backup.store.verify(backup.store.read(name))


def test_whichever_lies_there_now_is_the_place_once_a_person_has_named_it(folder: Path) -> None:
    backup = backup_of(folder)
    backup.check_place()
    backup.remember_place(backup.place_id)
    first = backup.place_id
    assert first is not None
    shutil.rmtree(folder / "place")
    (folder / "place").mkdir()
    with pytest.raises(StorageError):
        backup_of(folder).check_place()
    backup_of(folder, place=None).adopt_place()  # of which there is none
    with pytest.raises(StorageError):
        backup_of(folder).check_place()
    backup_of(folder).adopt_place()
    again = backup_of(folder)
    again.check_place()
    assert again.place_id not in (first, None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Simulated time, and copiers that copy nothing."""
    clock = Clock(1000.0)
    now = SimpleNamespace(monotonic=clock, sleep=clock.sleep, time=lambda: 5000.0)
    monkeypatch.setattr(copier_client, "time", now)
    monkeypatch.setattr(run_backup, "time", now)
    monkeypatch.setattr(copier_client, "HelperProcess", FakeProcess)
    FakeProcess.made.clear()
    return clock


def sent(number: int = -1) -> list[str]:
    """The lines that a copier was sent, without its settings."""
    return FakeProcess.made[number].lines()[1:]


@pytest.mark.usefixtures("clock")
def test_a_copier_gets_the_settings_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = BackupConfig(
        place=str(tmp_path / "place"),
        keep=5,
        compression="zstd",
        megabytes_per_second=2.5,
        finish_seconds=7.0,
    )
    store = str(tmp_path / "run/checkpoints")
    RunBackup(Path("run/checkpoints"), options).start()
    RunBackup(
        Path("run/checkpoints"),
        options.copy_with(megabytes_per_second=None),
        run_id=RUN,
        status_path=Path("status.json"),
        traceback_path=Path("traceback.txt"),
    ).nudge()
    own = CopierSettings(
        store, str(options.place), "checkpoints", f"{store}/backup.json", 5, "zstd", 2.5e6, 7.0
    )
    given = replace(
        own,
        run_id=RUN,
        status=str(tmp_path / "status.json"),
        bytes_per_second=None,
        traceback=str(tmp_path / "traceback.txt"),
    )
    settings = [json.loads(process.lines()[0]) for process in FakeProcess.made]
    assert settings == [asdict(own), asdict(given)]


def test_without_a_place_nothing_is_started_or_awaited(tmp_path: Path) -> None:
    with RunBackup(tmp_path / "checkpoints") as backup:
        backup.start()
        backup.nudge()
        backup.try_again()
        backup.look_after()
        backup.remember_place("0" * 32)
        assert backup.finish() == backup.status() == BackupStatus(state="off")
        assert (backup.check_place(), backup.num_copier_failures) == (None, 0)
    assert backup.wait_ended(0.0)
    assert not (tmp_path / "checkpoints").exists()


def test_the_status_is_that_of_the_copier_or_what_it_left(folder: Path, clock: Clock) -> None:
    backup = backup_of(folder)
    newest, older = backup.store.versions()
    unhealthy = backup.store.commit(tensors_at(3), {}, step=3, healthy=False)
    place = str(folder / "place")
    finished = BackupStatus(place, "finished", newest_name=newest, newest_step=2)
    copying = BackupStatus(place, "copying", newest_name=older, newest_step=1, in_flight_step=1)
    cases = [
        (replace(finished, place="another"), BackupStatus(), BackupStatus()),
        (finished, finished, finished),
        (
            replace(finished, newest_name=older, newest_step=1),
            replace(finished, state="left"),
            replace(finished, newest_name=older, newest_step=1),
        ),
        (replace(copying, state="left"), replace(copying, state="left"), None),
        (replace(finished, state="down"), None, replace(finished, state="starting")),
    ]
    for written, _, ours in cases:
        write_status(backup.status_path, written)
        running = backup_of(folder)
        running.start()
        assert running.status() == (written if ours is None else ours)
        FakeProcess.made[-1].code = 1
    for written, alone, _ in cases:
        write_status(backup.status_path, written)
        assert backup.status() == (written if alone is None else alone)
    assert unhealthy not in (newest, older)


@pytest.mark.parametrize("error", [None, "no answer"])
def test_a_copier_that_failed_is_reported_until_it_copies_again(
    folder: Path, clock: Clock, error: str | None
) -> None:
    backup = backup_of(folder)
    backup.start()
    FakeProcess.made[-1].code = 1
    known = BackupStatus(str(folder / "place"), "copying", error=error, newest_name="x")
    write_status(backup.status_path, known)
    own = "backup.copier_failed(reason=ended with 1)"
    assert replace(backup.status(), state="copying") == replace(known, error=error or own)
    clock.now += 10.0
    backup.look_after()
    assert len(FakeProcess.made) == 2
    FakeProcess.made[-1].code = 1
    backup.look_after()
    assert (read_status(backup.status_path), backup.num_copier_failures) == (known, 2)
    clock.now += 10.0
    backup.start()
    FakeProcess.made[-1].code = 1
    backup.look_after()
    assert backup.num_copier_failures == 3
    reason = "backup.copier_cannot_run(reason=ended with 1)"
    down = replace(
        known,
        state="down",
        error=reason,
        advice="backup.unconfirmed_only_here()",
        num_failures=3,
        newest_name=backup.store.versions()[0],
        newest_step=2,
        changed_at=5000.0,
    )
    assert read_status(backup.status_path) == down
    write_status(backup.status_path, replace(down, changed_at=1.0))
    assert backup.status() == replace(down, changed_at=1.0), "this is no news"
    backup.try_again()
    assert backup.status().state == "starting"


def status_of(folder: Path, **facts: Any) -> BackupStatus:
    name = backup_of(folder).store.versions()[0]
    return replace(BackupStatus(str(folder / "place"), "idle", newest_name=name), **facts)


@pytest.mark.parametrize(
    ("state", "is_confirmed", "seconds", "waited"),
    [
        *((state, False, 3.0, 3.0) for state in STATES if state not in ("off", "fenced", "down")),
        ("fenced", False, 3.0, 0.0),
        ("idle", True, 3.0, 0.0),
        ("idle", False, None, 7.0),
        ("idle", False, 0.0, 0.0),
    ],
)
def test_the_end_waits_for_the_newest_checkpoint(
    folder: Path, clock: Clock, state: str, is_confirmed: bool, seconds: float | None, waited: float
) -> None:
    options = BackupConfig(place=str(folder / "place"), finish_seconds=7.0)
    backup = RunBackup(folder / "run/checkpoints", options, run_id=RUN)
    newest, older = backup.store.versions()
    confirmed = newest if is_confirmed else older
    write_status(backup.status_path, status_of(folder, state=state, confirmed_name=confirmed))
    assert backup.finish(seconds, look="").state == state
    assert clock.now - 1000.0 == pytest.approx(waited, abs=run_backup.POLL_SECONDS * 1.01)
    assert sent() == [""]


@pytest.mark.parametrize("look", [None, "mine"])
def test_the_end_waits_for_a_last_look(
    folder: Path, clock: Clock, look: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = backup_of(folder)
    found = status_of(folder, confirmed_name=backup.store.versions()[0], last_look="another")
    write_status(backup.status_path, found)

    def sleep(seconds: float) -> None:
        clock.now += seconds
        if clock.now > 1002.0:
            token = look or sent()[1].removeprefix(LOOK)
            write_status(backup.status_path, replace(found, last_look=token))

    monkeypatch.setattr(run_backup.time, "sleep", sleep)
    backup.finish(60.0, look=look)
    assert 1002.0 < clock.now < 1003.0
    assert len(sent()) == (2 if look is None else 1)


@pytest.mark.parametrize("is_confirmed", [True, False])
@pytest.mark.usefixtures("clock")
def test_a_copier_with_nothing_left_to_copy_is_waited_for(folder: Path, is_confirmed: bool) -> None:
    backup = backup_of(folder)
    newest, older = backup.store.versions()
    with backup:
        backup.start()
        write_status(backup.status_path, status_of(folder, confirmed_name=newest))
        if not is_confirmed:
            write_status(backup.status_path, status_of(folder, confirmed_name=older))
    (process,) = FakeProcess.made
    assert process.waited == [ENDS_SECONDS if is_confirmed else 0.0]
    backup.forget_status()
    backup.forget_status()
    assert read_status(backup.status_path) == BackupStatus()


@pytest.mark.parametrize(
    ("state", "error", "given", "waited", "problem"),
    [
        ("idle", None, None, 7.0, "backup.folder_not_confirmed_yet()"),
        ("retrying", "no answer", 2.0, 2.0, "no answer"),
        ("fenced", None, 2.0, 0.0, "backup.state_fenced()"),
    ],
)
def test_a_folder_that_is_not_confirmed_in_time_is_named(
    folder: Path,
    clock: Clock,
    state: str,
    error: str | None,
    given: float | None,
    waited: float,
    problem: str,
) -> None:
    options = BackupConfig(place=str(folder / "place"), finish_seconds=7.0)
    backup = RunBackup(folder / "run/checkpoints", options, run_id=RUN)
    final = folder / "run/final"
    final.mkdir()
    (final / "config.json").touch()
    write_status(backup.status_path, status_of(folder, state=state, error=error))
    expected = f"backup.folder_not_safe(folder={final}, url={folder}/place, problem={problem})"
    with pytest.raises(StorageError) as raised:
        backup.publish(final, given)
    assert str(raised.value) == expected
    assert clock.now - 1000.0 == pytest.approx(waited, abs=run_backup.POLL_SECONDS * 1.01)


def test_a_folder_is_published_as_named_and_its_own_token_is_awaited(
    folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = backup_of(folder)
    final = folder / "run/final"
    final.mkdir()
    (final / "config.json").touch()
    (final / "notes.txt").touch()
    requests: list[Publication] = []

    def sleep(seconds: float) -> None:
        requests.append(Publication.from_line(FakeProcess.made[-1].lines()[-1].encode()))
        urls = {requests[-1].token: "its url", "another": "another url"}
        write_status(backup.status_path, status_of(folder, published_folders=urls))

    monkeypatch.setattr(run_backup.time, "sleep", sleep)
    write_status(backup.status_path, status_of(folder, published_folders={"another": "x"}))
    assert backup.publish(final) == "its url"
    monkeypatch.chdir(folder / "run")
    url = backup.publish(Path("final"), name="model", files=["config.json"], replaces=True)
    assert url == "its url"
    assert [replace(each, token="") for each in requests] == [
        Publication("", str(final), "final"),
        Publication("", str(final), "model", ("config.json",), True),
    ]
    assert len({each.token for each in requests}) == 2


def test_an_absent_place_is_reported_like_damage_and_stops_what_needs_it(folder: Path) -> None:
    shutil.move(folder / "place", folder / "away")
    backup = backup_of(folder, "place/deep/er")
    url = str(folder / "place/deep/er")
    advice = f"backup.advice_mount_disk(url={url})"
    missing = f"[Errno 107] backup.path_missing(path={folder}/place/deep)"
    problem = f"{url}: {missing}; {advice}"
    newest, older = backup.store.versions()
    assert backup.verify() == [
        VerifiedVersion("here", newest, 2, None),
        VerifiedVersion("here", older, 1, None),
        VerifiedVersion(url, None, None, problem),
    ]
    for call in (backup.list_backups, backup.prune):
        with pytest.raises(StorageError) as raised:
            call()
        assert str(raised.value) == problem
    assert backup_of(folder, place=None).list_backups() == [
        replace(one, places=("here",)) for one in backup_of(folder, "away").list_backups()
    ]


def test_pruning_keeps_the_newest_and_the_best_here_and_as_many_as_configured_there(
    folder: Path,
) -> None:
    backup = backup_of(folder, place=None)
    own = RunBackup(folder / "own", retention=Retention(keep_last=4))
    for step in range(1, 8):
        own.store.commit(tensors_at(step), {}, step=step, score=float(step))
    assert own.prune() == ["backup.checkpoints_removed_here(count=3)"]
    for step in range(3, 8):
        backup.store.commit(tensors_at(step), {}, step=step, score=abs(step - 4.0))
    place = folder / "place"
    shutil.rmtree(place / RUN)
    shutil.copytree(backup.store.root, place / RUN)
    assert backup.prune() == ["backup.checkpoints_removed_here(count=4)"]
    assert [backup.store.read(name).step for name in backup.store.versions()] == [7, 6, 4]
    options = BackupConfig(place=str(place), keep=3)
    status_path = folder / "run/state/status.json"
    status_path.parent.mkdir()
    there = RunBackup(backup.store.root, options, run_id=RUN, status_path=status_path)
    sentences = there.prune()
    assert sentences[0] == "backup.checkpoints_removed_here(count=0)"
    assert len(sentences) > 1
    assert [int(name[:12]) for name in there._stores()[str(place)].versions()] == [7, 6, 5, 4]
    assert [path.name for path in status_path.parent.iterdir()] == ["backup-unnamed.json"]


@pytest.mark.parametrize("step", [None, 1])
def test_a_restored_checkpoint_is_known_as_confirmed_and_its_place_as_the_past(
    folder: Path, step: int | None, clock: Clock
) -> None:
    place, elsewhere = folder / "place", folder / "elsewhere"
    options = BackupConfig(place=str(place))
    backup = RunBackup(elsewhere, options, run_id=RUN)
    link = RemoteSession(open_place(str(place)), RUN)
    listed = link.store.versions()
    claimed = f"{9:012d}{listed[0][12:]}"
    Claims(link).take(claimed, lambda holder: None)
    path = backup.restore_run(step)
    newest = listed[0]
    assert path == elsewhere / f"versions/{newest if step is None else listed[1]}.json"
    assert Lineage(elsewhere).known == {*listed, claimed}
    saved_at = backup.store.read(path.stem).created_at()
    status = BackupStatus(
        place=str(place),
        state="finished",
        confirmed_name=newest,
        confirmed_step=2,
        saved_at=saved_at,
        confirmed_at=5000.0,
        present_at=5000.0,
        compared_at=5000.0,
        compared_by="read-back",
        newest_name=newest,
        newest_step=2,
        changed_at=5000.0,
    )
    assert read_status(backup.status_path) == (status if step is None else BackupStatus())
    if step is None:
        known = replace(status, state="copying")
        write_status(backup.status_path, known)
        backup.restore_run()
        assert read_status(backup.status_path) == known


def test_progress_is_reported_while_a_checkpoint_is_fetched(folder: Path) -> None:
    options = BackupConfig(place=str(folder / "place"))
    seen: list[tuple[int, int]] = []
    backup = RunBackup(folder / "elsewhere", options, run_id=RUN)
    backup.restore_run(on_progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 0
    with pytest.raises(StorageError, match=r"^backup\.no_destination\(\)$"):
        RunBackup(folder / "elsewhere").restore_run()


def test_small_files_of_a_run_come_back_where_its_folder_is_given(folder: Path) -> None:
    run, backup = folder / "run", backup_of(folder)
    (run / "metrics.csv").write_text("step\n1\n")
    backup.store.commit({**tensors_at(3), **read_run_files(run)}, {}, step=3)
    assert backup.repair(run) == []
    (run / "metrics.csv").unlink()
    assert backup.repair() == []
    assert [each.what for each in backup.repair(run)] == ["metrics.csv"]
    assert (run / "metrics.csv").read_text() == "step\n1\n"
    (run / "metrics.csv").unlink()
    (run / "metrics.csv").mkdir()
    problem = rf"^backup\.run_files_repair_failed\(directory={run}, error="
    with pytest.raises(StorageError, match=problem):
        backup.repair(run)


def test_a_store_that_cannot_be_swept_is_named_before_it_is_repaired(folder: Path) -> None:
    backup = backup_of(folder)
    root = backup.store.root
    (root / "tmp/a-folder").mkdir()
    with pytest.raises(
        StorageError, match=rf"^backup\.sweep_failed\(root={root}, error="
    ) as raised:
        backup.repair()
    assert isinstance(raised.value.__cause__, OSError)
    (root / "tmp/a-folder").rmdir()
    (root / "tmp/half").touch()
    assert backup.repair() == []
    assert [*(root / "tmp").iterdir()] == []


@pytest.mark.parametrize("is_allowed", [True, False])
def test_a_missing_place_stops_a_run_unless_that_is_allowed(folder: Path, is_allowed: bool) -> None:
    place = folder / "disk/place"
    options = BackupConfig(place=str(place), allow_missing_place=is_allowed)
    backup = RunBackup(folder / "run/checkpoints", options, run_id=RUN)
    reason = f"reason=backup.path_missing(path={folder}/disk)"
    advice = f"advice= (backup.advice_mount_disk(url={place}))"
    problem = f"backup.destination_unusable(url={place}, {reason}, {advice})"
    if is_allowed:
        refuse_unreachable_place(options)
        assert backup.check_place() == problem
    else:
        for call in (backup.check_place, lambda: refuse_unreachable_place(options)):
            with pytest.raises(StorageError) as raised:
                call()
            assert str(raised.value) == f"{problem}backup.or_allow_missing_destination()"
    assert (backup.is_missing, backup.is_new, backup.place_id) == (is_allowed, False, None)
    (folder / "disk").mkdir()
    for is_new in (True, False):
        refuse_unreachable_place(options)
        assert backup.check_place() is None
        marker = [path.name for path in (place / FOLDER).iterdir()]
        assert ([backup.place_id], backup.is_missing) == (marker, False)
        assert backup.is_new is is_new
    backup.remember_place(None)
    assert not backup.record.path.exists()
    backup.remember_place(backup.place_id)
    assert backup.record.id_of(str(place)) == backup.place_id
    assert backup.record.path == folder / "run/checkpoints/place.json"


def test_a_silent_place_is_waited_for_a_while_and_one_that_cannot_be_written_to_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = backup_of(folder)
    monkeypatch.setattr(run_backup, "CONTACT_SECONDS", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(backup, "_contact", lambda: time.sleep(0.2))
        with pytest.raises(StorageError, match=r"reason=core\.no_response_in_time\(seconds=0\)"):
            backup.check_place()
    monkeypatch.undo()

    def refuse() -> None:
        raise StorageError("core.error")

    assert backup._link is not None
    monkeypatch.setattr(backup._link.place, "probe", refuse)
    problem = f"destination_unusable(url={folder}/place, reason=core.error, advice=)"
    with pytest.raises(StorageError, match=re.escape(problem)):
        backup.check_place()


def test_the_place_counts_where_backups_are_on(tmp_path: Path) -> None:
    config = DeploymentConfig()
    config.backup = BackupConfig(place="/mnt/x", keep=5)
    for is_on, place in ((True, "/mnt/x"), (False, None)):
        config.enable_backups = is_on
        assert place_options(config) == BackupConfig(place=place, keep=5)
    refuse_unreachable_place(BackupConfig())
    assert last_place(tmp_path) is None
    write_status(tmp_path / "backup.json", BackupStatus())
    assert last_place(tmp_path) is None
    write_status(tmp_path / "backup.json", BackupStatus("s3://bucket", "idle"))
    assert last_place(tmp_path) == "s3://bucket"
