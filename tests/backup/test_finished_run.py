"""When a finished run counts as safe at its destination, and how it comes back from there."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infrastructure.backup import finished_run
from infrastructure.backup.backends.folder import FolderPlace
from infrastructure.backup.finished_run import Completion, complete, finished_at, not_safe
from infrastructure.backup.repair.run_files_repair import read_seal, seal_of
from infrastructure.backup.replication.folder_upload import Publication, PublishedFolder
from infrastructure.backup.replication.status import BackupStatus
from infrastructure.core.checksums import damaged_files, read_record, write_record, write_sums
from infrastructure.core.errors import DamagedFileError, StorageError

RUN = "20260101-000000-a-0000"
URL = f"disk/{RUN}/final"
SAFE = BackupStatus(
    "disk", "idle", confirmed_name="v", last_look="look", published_folders={"t": URL}
)
PROFILE = "logs/performance/profile.json"  # a file of a feature


class Backup:
    """A backup whose waits take three seconds each, with what it was called with."""

    def __init__(self, patch: pytest.MonkeyPatch, *statuses: BackupStatus) -> None:
        self.now, self.calls, self.statuses = 100.0, list[Any](), list(statuses)
        self.store = SimpleNamespace(newest_healthy=lambda: "v")
        self.refused = ""
        patch.setattr(finished_run, "time", SimpleNamespace(monotonic=lambda: self.now))

    def did(self, *call: Any) -> None:
        self.now += 3.0
        self.calls.append(call)

    def status(self) -> BackupStatus:
        return self.statuses[-1]

    def finish(self, seconds: float, look: str) -> BackupStatus:
        self.did("finish", seconds, look)
        return self.status()

    def begin_last_look(self) -> str:
        self.calls.append(("look",))
        return "look"

    def publish(
        self,
        folder: Path,
        seconds: float,
        name: str | None = None,
        files: Sequence[str] = (),
        replaces: bool = False,
    ) -> str:
        self.did("publish", folder.name, seconds, name, list(files), replaces)
        if self.refused == (name or folder.name):
            raise StorageError("https://me:secret@host is away")
        return URL


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run on this machine."""
    run = tmp_path / "runs" / RUN
    (run / PROFILE).parent.mkdir(parents=True)
    (run / "final").mkdir()
    (run / "final/weights").write_text("the weights")
    write_sums(run / "final")
    for name in ("report.html", "metrics.jsonl", "trained_rows.json", PROFILE, "run.json"):
        (run / name).write_text(f"{{}} {name}")
    (run / "quantum.json").mkdir()  # not a file
    summary = {"status": "finished", "steps": 5, "backup": {"published": f"{URL}/"}}
    write_record(run / "summary.json", summary)
    return run


LAST = ["summary.json", "report.html", "metrics.jsonl", "trained_rows.json", PROFILE]


def test_the_end_of_a_run_is_copied_and_checked_once_more(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup: Any = Backup(monkeypatch, SAFE)
    assert complete(backup, run, 20.0, record=backup.did) == Completion(URL)
    assert backup.calls == [
        ("finish", 20.0, ""),
        ("publish", "final", 17.0, None, [], False),
        (URL,),
        ("publish", RUN, 11.0, "report", LAST, True),
        ("look",),
        ("finish", 10.0, "look"),
    ]
    backup.calls.clear()
    end = complete(backup, run, 50.0, wait=lambda seconds: backup.did("wait", seconds))
    assert end.is_complete
    assert backup.calls[0] == ("wait", 50.0)
    assert backup.calls[-1] == ("finish", 41.0, "look")
    backup.calls.clear()
    assert complete(backup, run, 1.0).is_complete
    assert [call[2] for call in backup.calls if call[0] == "publish"] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("refused", "seen", "published", "problem"),
    [
        ("", {"confirmed_name": "u"}, URL, "backup.last_checkpoint_not_confirmed()"),
        ("", {"confirmed_name": "u", "error": "it is full"}, URL, "it is full"),
        ("", {"last_look": "another"}, URL, "backup.final_check_not_done()"),
        ("", {"last_look": "another", "error": "it is full"}, URL, "it is full"),
        ("", {"published_folders": {}}, URL, "backup.final_check_not_done()"),
        ("", {"published_folders": {"t": "disk/x"}}, URL, "backup.final_check_not_done()"),
        ("final", {"error": "it is full"}, None, "https://***@host is away"),
        ("report", {}, URL, "https://***@host is away"),
        ("final", {"state": "down", "error": "no copier"}, None, "no copier"),
        ("report", {"state": "down", "error": "no copier"}, URL, "no copier"),
    ],
)
def test_what_is_not_confirmed_is_not_complete(
    run: Path,
    refused: str,
    seen: dict[str, Any],
    published: str | None,
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backup: Any = Backup(monkeypatch, BackupStatus(**{**vars(SAFE), **seen}))
    backup.refused = refused
    end = complete(backup, run, 20.0)
    assert end == Completion(published, problem)
    assert not end.is_complete
    assert (backup.calls[-1][0] == "publish") == bool(refused)


def test_a_run_without_its_model_is_not_complete(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup: Any = Backup(monkeypatch, SAFE)
    for error in (OSError("gone"), ValueError("empty")):

        def fail(*_: Any, error: Exception = error, **__: Any) -> str:
            raise error

        monkeypatch.setattr(backup, "publish", fail)
        assert complete(backup, run, 20.0) == Completion(None, str(error))


def test_the_message_on_a_run_that_is_not_safe_names_what_is(run: Path) -> None:
    place = "ftp://me:secret@host/temper"
    assert not_safe(run, place, Completion(f"{place}/final", "it is full")) == (
        f"backup.finished_run_partly_confirmed(run={RUN}, url=ftp://***@host/temper/final,"
        " problem=it is full)"
    )
    there = f"run={RUN}, model={run}/final, url=ftp://***@host/temper"
    for problem, shown in (("full", "full"), (None, "backup.confirmation_not_awaited()")):
        assert not_safe(run, place, Completion(None, problem)) == (
            f"backup.finished_run_not_confirmed({there}, problem={shown})"
        )


@pytest.fixture
def place(run: Path, tmp_path: Path) -> FolderPlace:
    """The destination that holds the run; another model took the name `final` before."""
    place = FolderPlace(tmp_path / "disk")
    place.write(Path(RUN, "final/weights"), [b"other weights"])
    publish(place, run, "final", ())
    (copy,) = (path.name for path in (place.root / RUN).iterdir() if path.name != "final")
    summary = read_record(run / "summary.json")
    summary["backup"] = {"published": f"{place.url}/{RUN}/{copy}/"}
    write_record(run / "summary.json", summary)
    publish(place, run, "report", LAST)
    return place


def publish(place: FolderPlace, run: Path, name: str, files: Sequence[str]) -> None:
    folder = run / name if name == "final" else run
    what = Publication("t", str(folder), name, tuple(files), replaces=name == "report")
    assert list(PublishedFolder(place, Path(RUN), what).steps())


def test_a_finished_run_comes_back(run: Path, place: FolderPlace, tmp_path: Path) -> None:
    for step in (4, 5):
        found = finished_at(place, RUN, step)
        assert found is not None
    assert found.url.startswith(f"{place.url}/{RUN}/final-")
    assert found.summary == read_record(run / "summary.json")
    new = tmp_path / "new" / RUN
    new.mkdir(parents=True)
    (new / "metrics.jsonl").write_text("the beginning")
    moved: list[tuple[int, int]] = []
    found.fetch(new, lambda *done: moved.append(done))
    for name in ("report.html", "metrics.jsonl", "trained_rows.json", PROFILE, "final/weights"):
        assert (new / name).read_bytes() == (run / name).read_bytes()
    assert damaged_files(new / "final") == []
    assert (11, 11) in moved
    assert read_record(new / "summary.json").items() >= found.summary.items()
    assert read_seal(new) == seal_of(new)
    assert "report.html" in read_seal(new)
    assert sorted(path.name for path in new.iterdir()) == [
        *("final", "logs", "metrics.jsonl", "report.html", "summary.json", "trained_rows.json")
    ]
    (new / "final/weights").write_text("kept")
    found.fetch(new, lambda *_: None)
    assert (new / "final/weights").read_text() == "kept", "a model that is here stays"
    (place.root / found.model / "weights").write_text("the wEights")
    with pytest.raises(DamagedFileError):
        found.fetch(tmp_path / "another", lambda *_: None)
    (new / "summary.json").unlink()
    (new / "report.html").unlink()
    (new / "report.html").mkdir()
    with pytest.raises(OSError, match="directory"):
        found.fetch(new, lambda *_: None)
    assert not (new / "summary.json").exists(), "it comes last"


def with_summary(**changes: Any) -> Callable[[FolderPlace, Path], object]:
    def change(place: FolderPlace, run: Path) -> None:
        summary = {**read_record(run / "summary.json"), **changes}
        write_record(run / "summary.json", {k: v for k, v in summary.items() if v is not None})
        publish(place, run, "report", LAST)

    return change


def broken(pattern: str, text: str | None) -> Callable[[FolderPlace, Path], object]:
    def change(place: FolderPlace, run: Path) -> None:
        (path,) = (place.root / RUN).glob(pattern)
        if text is None:
            path.unlink()
        else:
            path.write_text(text)

    return change


@pytest.mark.parametrize(
    "change",
    [
        with_summary(status="stopped"),
        with_summary(status=None),
        with_summary(steps=4),
        with_summary(steps=None),
        with_summary(steps="five"),
        with_summary(backup=None),
        with_summary(backup={}),
        with_summary(backup="disk"),
        with_summary(backup={"published": "disk/final-00000000"}),
        broken("report/SHA256SUMS", None),
        broken("report/SHA256SUMS", "torn"),
        broken("report/metrics.jsonl", None),
        broken("report/metrics.jsonl", "other"),
        broken("report/summary.json", "{}"),
        broken("final-*/SHA256SUMS", None),
        broken("final-*/SHA256SUMS", ""),
        broken("final-*/SHA256SUMS", "torn"),
    ],
)
def test_a_run_that_is_not_whole_there_is_not_finished_there(
    run: Path, place: FolderPlace, change: Callable[[FolderPlace, Path], object]
) -> None:
    assert finished_at(place, RUN, 5)
    change(place, run)
    assert finished_at(place, RUN, 5) is None


def test_a_destination_that_is_away_is_not_an_answer(
    place: FolderPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> Any:
        raise OSError("no route to host")

    monkeypatch.setattr(place, "read", fail)
    with pytest.raises(OSError, match="no route"):
        finished_at(place, RUN, 5)
