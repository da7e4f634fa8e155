"""How the copies of a run are told, waited for and recorded, whatever their place does."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from infrastructure.backup.backends import open_place
from infrastructure.backup.finished_run import Completion
from infrastructure.backup.format.retention import Retention
from infrastructure.backup.format.store import Store
from infrastructure.backup.replication.status import BackupStatus
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.console import Report
from infrastructure.core.errors import StorageError
from infrastructure.run import replication
from infrastructure.run.directory import RunDirectory
from infrastructure.run.replication import RunReplication, newest_kept, versions_kept
from tests.backup.memory_place import save


@pytest.fixture
def lines() -> list[str]:
    return []


def copies_of(folder: Path, lines: list[str], **backup: Any) -> RunReplication:
    (folder / "disk").mkdir(exist_ok=True)
    backup = {"place": str(folder / "disk"), "emergency_seconds": 20.0} | backup
    training = {"keep_checkpoints": 5, "keep_best": 2}
    config = DeploymentConfig(backup=backup, training=training)
    return RunReplication(RunDirectory(folder / "run"), config, lines.append)


class Backup:
    """Confirms the newest version at its third look."""

    def __init__(self, copies: RunReplication, *states: dict[str, Any]) -> None:
        self.store, self.options = copies.backup.store, copies.backup.options
        self.states = [BackupStatus(**{"state": "idle", **state}) for state in states]
        self.calls: list[object] = []

    def status(self) -> BackupStatus:
        return self.states[0]

    def try_again(self) -> None:
        self.calls.append("try again")

    def begin_last_look(self) -> str:
        return "look"

    def forget_status(self) -> None:
        self.calls.append("forget")

    def close(self) -> None:
        self.calls.append("close")

    def finish(self, seconds: float, look: str) -> BackupStatus:
        self.calls.append((look, seconds))
        if len(self.states) > 1:
            self.states.pop(0)
        return self.states[0]


def test_the_copier_is_given_the_run_its_rotation_and_where_it_explains_itself(
    tmp_path: Path, lines: list[str]
) -> None:
    copies = copies_of(tmp_path, lines)
    backup = copies.backup
    assert (backup.run_id, backup.store.root) == ("run", tmp_path / "run/checkpoints")
    assert backup.retention == Retention(5, 2)
    assert backup.traceback_path is not None
    assert backup.traceback_path.is_relative_to(tmp_path / "run")


@pytest.mark.parametrize(
    ("saved_at", "confirmed_at", "expected"),
    [
        (None, None, 20.0),  # nobody knows yet
        (100.0, None, 20.0),
        (None, 100.0, 20.0),
        (100.0, 140.0, 60.0),
        (100.0, 400.0, 200.0),  # no longer than the end of a run waits
        (100.0, 90.0, 0.0),  # a clock was set
    ],
)
def test_what_the_last_copy_took_the_next_one_may_take(
    tmp_path: Path,
    lines: list[str],
    saved_at: float | None,
    confirmed_at: float | None,
    expected: float,
) -> None:
    copies = copies_of(tmp_path, lines, finish_seconds=200.0)
    status = BackupStatus("here", "idle", saved_at=saved_at, confirmed_at=confirmed_at)
    copies._seen = (time.monotonic(), status)
    assert copies.seconds_to_confirm() == expected
    nowhere = RunReplication(copies.run, DeploymentConfig(), lines.append)
    assert nowhere.seconds_to_confirm() == 0.0


def test_the_end_waits_until_the_newest_version_is_confirmed_and_looked_at(
    tmp_path: Path, lines: list[str]
) -> None:
    copies = copies_of(tmp_path, lines)
    name = save(copies.backup.store, 3)
    settled = {"confirmed_name": name, "confirmed_step": 3, "last_look": "look"}
    backup: Any = Backup(copies, {}, {"error": "away"}, {"confirmed_name": name}, settled)
    copies.backup = backup
    copies.wait(600.0)
    assert backup.calls == ["try again", ("look", 2.0), ("look", 1.0), ("look", 1.0)]
    waiting, problem = lines
    assert waiting == "run.waiting_for_backup(duration=10 min)"
    assert problem.endswith("problem=; away)")


def test_a_wait_of_a_moment_is_not_announced(tmp_path: Path, lines: list[str]) -> None:
    copies = copies_of(tmp_path, lines)
    name = save(copies.backup.store, 3)
    settled = {"confirmed_name": name, "confirmed_step": 3, "last_look": "look"}
    backup: Any = Backup(copies, {}, settled)
    copies.backup = backup
    copies.wait(600.0)
    assert (backup.calls, lines) == (["try again", ("look", 2.0)], [])


def waited(
    folder: Path, patch: pytest.MonkeyPatch, seconds: float, *states: dict[str, Any]
) -> tuple[list[tuple[float, str]], list[tuple[int, int]], Any]:
    """The lines of a wait with the seconds at which they were shown, the moves of its bar, and
    its backup, whose looks take the time that they may."""
    now, shown, moves = [100.0], [], []
    patch.setattr(replication.time, "monotonic", lambda: now[0])

    @contextmanager
    def bar(what: str) -> Iterator[Callable[[int, int], None]]:
        yield lambda done, total: moves.append((done, total))

    patch.setattr(replication, "byte_bar", bar)
    copies = copies_of(folder, [])
    save(copies.backup.store, 3)
    copies.report = lambda line: shown.append((now[0] - 100.0, line.partition("(")[0]))
    copies.backup = backup = cast(Any, Backup(copies, *states))
    finish = backup.finish

    def timed(seconds: float, look: str) -> BackupStatus:
        now[0] += seconds
        return finish(seconds, look)

    backup.finish = timed
    copies.wait(seconds)
    return shown, moves, backup


WAITING, STATUS = "run.waiting_for_backup", "backup.status"


def test_a_long_wait_is_reported_every_half_minute_and_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"done_bytes": 3, "total_bytes": 8}
    shown, moves, backup = waited(tmp_path, monkeypatch, 70.5, state)
    assert shown == [(2.0, WAITING), (30.0, STATUS), (60.0, STATUS)]
    assert backup.calls[1:] == [("look", 2.0), *[("look", 1.0)] * 68, ("look", 0.5)]
    assert moves == [(3, 8)] * 69
    shown, moves, backup = waited(tmp_path, monkeypatch, 0.5, state)
    assert (shown, moves, backup.calls[1:]) == ([(0.5, WAITING)], [], [("look", 0.5)])


def test_each_new_problem_of_a_wait_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [None, "one", "one", "other", None, "other", "one", "one"]
    states = [{"error": error} for error in errors]
    shown, _, _ = waited(tmp_path, monkeypatch, 20.0, *states)
    assert shown == [(2.0, WAITING), (2.0, STATUS), (4.0, STATUS), (7.0, STATUS)]
    states = [{"error": error} for error in (None, "one", *[None] * 40, "one", "one")]
    shown, _, _ = waited(tmp_path, monkeypatch, 50.0, *states)
    assert shown == [(2.0, WAITING), (2.0, STATUS), (30.0, STATUS)]


@pytest.mark.parametrize("state", ["fenced", "doubtful", "down"])
def test_what_a_wait_would_not_change_is_not_waited_for(
    tmp_path: Path, lines: list[str], state: str
) -> None:
    copies = copies_of(tmp_path, lines)
    save(copies.backup.store, 3)
    backup: Any = Backup(copies, {"state": state})
    copies.backup = backup
    copies.wait(600.0)
    assert (backup.calls, lines) == (["try again"], [])


def test_nothing_is_waited_for_without_a_version_or_without_time(
    tmp_path: Path, lines: list[str]
) -> None:
    copies = copies_of(tmp_path, lines)
    backup: Any = Backup(copies, {})
    copies.backup = backup
    copies.wait(600.0)
    save(backup.store, 3)
    copies.wait(0.0)
    assert (backup.calls, lines) == (["try again"] * 2, [])


def test_a_wait_that_a_person_ends_leaves_an_incomplete_copy(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = copies_of(tmp_path, lines)

    def complete(*given: object, record: Any, wait: object) -> Completion:
        assert (*given, wait) == (copies.backup, copies.run.path, 9.0, copies._wait)
        record("/disk/run/final")
        raise KeyboardInterrupt

    recorded: list[object] = []
    monkeypatch.setattr(replication, "complete", complete)
    copies.complete(9.0, lambda: recorded.append(copies.facts()["published"]))
    assert recorded == ["/disk/run/final"]
    assert (copies.completion.published, copies.completion.is_complete) == (
        "/disk/run/final",
        False,
    )
    assert copies.problem() == (
        "backup.finished_run_partly_confirmed(run=run, url=/disk/run/final, "
        "problem=run.wait_for_backup_ended())"
    )
    facts = copies.facts()
    assert facts["published"] == "/disk/run/final"
    assert facts["problem"] == copies.completion.problem
    copies.report_incomplete()
    assert lines[-1] == copies.problem()
    whole = Completion("/disk/run/final", None)
    monkeypatch.setattr(replication, "complete", lambda *_, **__: whole)
    copies.complete(9.0, lambda: None)
    copies.report_incomplete()
    assert (copies.completion, copies.problem(), len(lines)) == (whole, None, 2)
    copies.completion = Completion(None, "away")
    assert copies.problem() == (
        f"backup.finished_run_not_confirmed(run=run, model={copies.run.final}, "
        f"url={tmp_path / 'disk'}, problem=away)"
    )


def test_the_monitor_reads_the_age_of_what_is_safe(tmp_path: Path, lines: list[str]) -> None:
    copies = copies_of(tmp_path, lines)
    now = time.time()
    status = {"saved_at": now - 70, "confirmed_at": now - 60, "confirmed_step": 3}
    backup: Any = Backup(copies, {**status, "confirmed_name": save(copies.backup.store, 3)})
    backup.num_copier_failures = 4
    copies.backup = backup
    probes = copies.probes()
    assert probes.keys() == {"backup_age_seconds", "copier_failures"}
    age_seconds = probes["backup_age_seconds"]()
    assert age_seconds is not None
    assert 60 <= age_seconds < 120
    assert probes["copier_failures"]() == 4
    assert RunReplication(copies.run, DeploymentConfig(), lines.append).probes() == {}


@pytest.mark.parametrize(
    ("training", "total_steps", "most", "newest"),
    [
        ({"keep_checkpoints": 3, "keep_best": 1}, 2, 2, 2),
        ({"keep_checkpoints": 2, "keep_best": 5}, 100, 7, 5),
        ({"keep_checkpoints": 4, "keep_best": 1}, 100, 5, 4),
    ],
)
def test_as_many_versions_as_rotation_keeps(
    training: dict[str, int], total_steps: int, most: int, newest: int
) -> None:
    config = DeploymentConfig(training=training).training
    assert versions_kept(config, total_steps) == most
    assert newest_kept(config, total_steps) == newest


def test_the_room_at_the_place_is_for_what_is_kept_there(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    required: list[tuple[object, ...]] = []

    def require(name: str, store: Store, keep: int, num_bytes: int) -> str:
        required.append((name, store.root, store.operations is place, keep, num_bytes))
        return f"room: {name}"

    url, copies = str(tmp_path / "disk"), copies_of(tmp_path, lines, keep=9)
    copies.run.path.mkdir()
    place = open_place(url)
    monkeypatch.setattr(replication, "open_place", lambda url: place)
    monkeypatch.setattr(replication, "require_free_space", require)
    copies.check_free_space(1000, 50)
    assert required == [
        ("Disk", tmp_path / "run/checkpoints", False, 7, 1000),
        (url, Path("run"), True, 9, 1000),
    ]
    caution = f"note: backup.destination_on_same_disk(url={url})"
    assert lines == [caution]
    copies.report = Report(lines.append, is_verbose=True)
    copies.check_free_space(1000, 50)
    assert lines[1:] == ["room: Disk", f"room: {url}", caution]


def test_a_place_that_is_missing_is_reported_where_a_run_may_start_without(
    tmp_path: Path, lines: list[str]
) -> None:
    copies = copies_of(tmp_path, lines)
    copies.check_place()
    assert lines == []
    away = {"place": str(tmp_path / "away" / "disk"), "allow_missing_place": True}
    copies_of(tmp_path, lines, **away).check_place()
    [line] = lines
    assert line.startswith("run.training_without_backups(problem=backup.")
    assert str(tmp_path / "away") in line
    with pytest.raises(StorageError):
        copies_of(tmp_path, lines, **{**away, "allow_missing_place": False}).check_place()


def test_a_place_whose_room_is_unknown_is_a_note(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def require(name: str, store: Store, keep: int, num_bytes: int) -> str:
        if name != "Disk":
            raise OSError(5, "Input/output error")
        return name

    monkeypatch.setattr(replication, "require_free_space", require)
    copies = copies_of(tmp_path, lines)
    copies.check_free_space(1000, 50)
    [line] = lines
    assert line.startswith(f"note: {tmp_path / 'disk'}: [Errno 5] Input/output error; backup.")
    RunReplication(copies.run, DeploymentConfig(), lines.append).check_free_space(1000, 50)
    assert len(lines) == 1


def test_without_a_place_nothing_is_waited_for_and_the_status_is_one_line(
    tmp_path: Path, lines: list[str]
) -> None:
    copies = RunReplication(RunDirectory(tmp_path), DeploymentConfig(), lines.append)
    save(copies.backup.store, 3)
    copies.wait(600.0)
    copies.complete(600.0, lambda: lines.append("recorded"))
    copies.compare_anew()
    copies.report_incomplete()
    assert (lines, copies.short(), copies.problem(), copies.has_place) == ([], None, None, False)
    assert copies.line() == "monitoring.checkpoints_not_backed_up()"
    assert copies.facts() == {"text": "monitoring.checkpoints_not_backed_up()"}


def test_a_person_who_ends_the_wait_reads_that_the_copier_continues(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = copies_of(tmp_path, lines)
    save(copies.backup.store, 3)
    backup: Any = Backup(copies, {})
    copies.backup = backup

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(backup, "finish", interrupt)
    copies.wait(600.0)
    [line] = lines
    assert line == f"run.backup_continues_unattended(backup_status={copies.line()})"
    assert copies.facts()["text"] == copies.line()


def test_the_status_is_looked_at_once_a_second(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(replication.time, "monotonic", lambda: now[0])
    copies = copies_of(tmp_path, lines)
    name = save(copies.backup.store, 3)
    known = {"confirmed_name": name, "confirmed_step": 3}
    backup: Any = Backup(copies, {}, known)
    copies.backup = backup
    assert copies.confirmed_step() is None
    backup.states.pop(0)
    now[0] += replication.LOOK_SECONDS - 0.01
    assert copies.confirmed_step() is None
    now[0] += 0.01
    assert copies.confirmed_step() == 3


def test_the_state_of_the_copies_is_recorded_as_far_as_it_is_known(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication.time, "time", lambda: 1000.0)
    copies = copies_of(tmp_path, lines)
    known = {"confirmed_name": "a", "confirmed_step": 3, "saved_at": 940.0, "confirmed_at": 955.0}
    copies.backup = backup = cast(Any, Backup(copies, {**known, "place": "disk"}))
    assert copies.short() == "backup.short_status(step=3, age=1 min, failing=)"
    confirmed = "confirmed=backup.step_confirmed(step=3, age=45 s)"
    text = f"backup.status({confirmed}, place=disk, in_flight=, problem=)"
    facts = copies.facts()
    assert copies.line() == facts["text"] == text
    assert facts["possible_loss_seconds"] == copies.age_seconds() == 60.0
    assert known.items() <= facts.items()
    assert not {"error", "newest_step", "published", "problem"} & facts.keys()
    copies.compare_anew()
    copies.close()
    assert backup.calls == ["forget", "close"]
