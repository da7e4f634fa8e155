"""The copier as a process: killed at any instant, left alone by its training, never in the way."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.retention import Retention, versions_to_keep
from infrastructure.backup.format.store import Store
from infrastructure.backup.replication import copier_client, copier_process
from infrastructure.backup.replication.copier_client import MANY_FAILURES, MODULE, CopierClient
from infrastructure.backup.replication.copier_process import (
    NICENESS,
    CopierSettings,
    StatusFile,
    _is_written_to,
)
from infrastructure.backup.replication.folder_upload import Publication
from infrastructure.backup.replication.status import BackupStatus, read_status, short_words
from infrastructure.backup.run_backup import RunBackup
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.helper_process import PACKAGE_PARENT
from infrastructure.core.lock import Lock
from tests.backup.memory_place import disconnected
from tests.backup.replication.test_copier import Rig as CopierRig

NUM_KILLS, MOST_KILLS = 15, 30
PATIENCE_SECONDS = 60.0

TRAINING = """
import json, sys, time
from pathlib import Path
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.run_backup import RunBackup
from infrastructure.config.sections.backup_config import BackupConfig

run, place = Path(sys.argv[1]), sys.argv[2]
backup = RunBackup(run / "checkpoints", BackupConfig(place=place), run_id="run-1",
                   status_path=run / "backup.json")
backup.start()
print("started", flush=True)
sys.stdin.readline()
for step in range(1, 4):
    data = bytes([step]) * 300_000
    name = backup.store.commit({"model/w": TensorBytes("U8", (len(data),), data)}, {}, step=step)
    backup.nudge()
print(name, flush=True)
time.sleep(600)
"""


def commit(store: Store, step: int) -> str:
    data = random.Random(step).randbytes(200_000)
    name = store.commit({"model/w": TensorBytes("U8", (len(data),), data)}, {}, step=step)
    store.remove_all_but(versions_to_keep(store, Retention()))
    return name


def wait_for(is_over: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_over():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


class Rig:
    """A run with a store, a place, and the settings of its copier."""

    def __init__(self, directory: Path) -> None:
        self.store = Store(directory / "run-1/checkpoints")
        self.place = directory / "place"
        self.remote = Store(self.place / "run-1")
        self.status_path = directory / "run-1/backup.json"
        self.clients: list[CopierClient] = []

    def settings(self, **others: object) -> CopierSettings:
        return CopierSettings(
            store=str(self.store.root),
            place=str(self.place),
            run_id="run-1",
            status=str(self.status_path),
            **others,  # type: ignore[arg-type]
        )

    def client(self, **others: object) -> CopierClient:
        self.clients.append(CopierClient(self.settings(**others)))
        return self.clients[-1]

    def status(self) -> BackupStatus:
        return read_status(self.status_path)

    def kill_after(self, seconds: float) -> None:
        """Start a copier, and kill it this long after it has begun."""
        begun = self.status().changed_at
        with subprocess.Popen(
            [sys.executable, "-m", "infrastructure.backup.replication.copier_process"],
            stdin=subprocess.PIPE,
            cwd=PACKAGE_PARENT,
        ) as process:
            assert process.stdin is not None
            settings = self.settings(bytes_per_second=1e6)
            process.stdin.write(json.dumps(asdict(settings)).encode() + b"\n")
            process.stdin.flush()
            wait_for(lambda: self.status().changed_at != begun)
            time.sleep(seconds)
            process.kill()

    def wait_confirmed(self, name: str) -> None:
        wait_for(lambda: self.status().confirmed_name == name)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    for client in rig.clients:
        if client.process_id is not None:
            os.kill(client.process_id, signal.SIGKILL)
        client.close()
        client.wait(PATIENCE_SECONDS)


def test_versions_are_confirmed_while_the_training_goes_on(rig: Rig) -> None:
    client = rig.client()
    client.start()
    for step in (1, 2):
        name = commit(rig.store, step)
        client.nudge()
        rig.wait_confirmed(name)
    assert rig.remote.newest() == (name, [])
    assert client.process_id is not None
    assert os.getsid(client.process_id) == client.process_id, "Ctrl-C is for the training"
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, client.process_id) == min(own + NICENESS, 19)


def test_a_status_that_only_counts_on_is_written_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "backup.json"
    file = StatusFile(path)

    def shown(**facts: Any) -> tuple[str, int | None]:
        file.show(BackupStatus(place="here", **facts))
        status = read_status(path)
        return status.state, status.done_bytes

    monkeypatch.setattr(copier_process, "STATUS_SECONDS", 600.0)
    assert shown(state="copying", done_bytes=1) == ("copying", 1)
    assert shown(state="copying", done_bytes=2) == ("copying", 1), "not yet"
    assert shown(state="confirming", done_bytes=3) == ("copying", 1), "not yet"
    assert shown(state="idle", done_bytes=4) == ("idle", 4), "at once"
    monkeypatch.setattr(copier_process, "STATUS_SECONDS", 0.0)
    assert shown(state="idle", done_bytes=5) == ("idle", 5)
    path.unlink()
    file.show(BackupStatus(place="here", state="idle", done_bytes=5, changed_at=7.0))
    assert not path.exists(), "it says nothing new"


@pytest.mark.parametrize(
    ("compression", "place", "compresses"),
    [
        ("auto", "", False),
        ("auto", "drive:", True),
        ("zstd", "", True),
        ("zstd", "drive:", True),
        ("off", "", False),
        ("off", "drive:", False),
    ],
)
def test_settings_become_a_session(
    rig: Rig, compression: str, place: str, compresses: bool
) -> None:
    settings = rig.settings(compression=compression, bytes_per_second=5e6, keep=3)
    link = replace(settings, place=f"{place}{rig.place}").link()
    found = link.run_id, link.compresses, link.bandwidth.bytes_per_second, link.place.url
    assert found == ("run-1", compresses, 5e6, str(rig.place))
    assert settings.retention == Retention(keep_last=3, keep_best=1)
    assert settings.record.path == rig.status_path.with_name("place.json")


def test_it_finds_what_was_committed_without_a_message(rig: Rig) -> None:
    rig.client().start()
    rig.wait_confirmed(commit(rig.store, 1))


def test_a_copier_killed_at_any_instant_loses_nothing_that_was_confirmed(rig: Rig) -> None:
    draw = random.Random(0)
    confirmed: list[str] = []
    longest_seconds = 1.0
    for step in range(1, MOST_KILLS + 1):
        if step > NUM_KILLS and len(confirmed) > 3:
            break
        commit(rig.store, step)
        rig.kill_after(draw.uniform(0.0, longest_seconds))
        name = rig.status().confirmed_name
        if name is not None and name not in confirmed:
            confirmed.append(name)
        else:
            longest_seconds *= 1.3  # this machine is busy: most kills shall not come too early
        for survivor in sorted(confirmed)[-2:]:
            rig.remote.verify(rig.remote.read(survivor))
    assert len(confirmed) > 3, "the kills came too early to say anything"
    client = rig.client()
    client.start()
    newest = rig.store.versions()[0]
    rig.wait_confirmed(newest)
    assert rig.remote.newest() == (newest, [])


def test_a_killed_training_still_gets_its_last_version_copied(rig: Rig) -> None:
    run = rig.status_path.parent
    with subprocess.Popen(
        [sys.executable, "-c", TRAINING, str(run), str(rig.place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=PACKAGE_PARENT,
        text=True,
    ) as training:
        assert training.stdout is not None
        assert training.stdin is not None
        training.stdout.readline()
        training.stdin.write("\n")
        training.stdin.flush()
        name = training.stdout.readline().strip()
        training.kill()
    wait_for(lambda: rig.status().state == "finished")
    assert rig.status().confirmed_name == name
    assert rig.remote.newest() == (name, [])


def test_it_ends_when_the_training_has_and_all_is_confirmed(rig: Rig) -> None:
    client = rig.client()
    client.start()
    name = commit(rig.store, 1)
    client.close()
    assert client.wait(PATIENCE_SECONDS)
    assert (rig.status().state, rig.status().confirmed_name) == ("finished", name)


def test_a_run_that_was_deleted_while_its_copier_started_stays_deleted(
    rig: Rig, tmp_path: Path
) -> None:
    rig.status_path = tmp_path / "runs/deleted/checkpoints/backup.json"
    rig.store = Store(rig.status_path.parent)
    copier = subprocess.run(
        [sys.executable, "-m", "infrastructure.backup.replication.copier_process"],
        input=json.dumps(asdict(rig.settings())).encode() + b"\n",
        cwd=PACKAGE_PARENT,
        check=False,
    )
    assert copier.returncode == 1
    assert not (tmp_path / "runs").exists()


def test_that_of_another_run_is_not_waited_for(rig: Rig, tmp_path: Path) -> None:
    other = Rig(tmp_path / "other")
    other.place = other.place / "not/mounted"
    commit(other.store, 1)
    stuck, client = other.client(finish_seconds=60.0), rig.client()
    for one in (stuck, client):
        one.start()
    stuck_id = stuck.process_id
    assert stuck_id is not None
    for one in (stuck, client):
        one.close()
    assert client.wait(PATIENCE_SECONDS)
    assert not stuck.wait(0.0)
    os.kill(stuck_id, signal.SIGKILL)
    assert stuck.wait(PATIENCE_SECONDS)


def test_it_gives_up_at_last_when_the_training_has_ended(rig: Rig) -> None:
    rig.place = rig.place / "not/mounted"
    commit(rig.store, 1)
    client = rig.client(finish_seconds=0.5)
    client.start()
    client.close()
    assert client.wait(PATIENCE_SECONDS)
    assert rig.status().state == "left"


def test_a_copier_that_died_is_started_again_but_not_at_once(rig: Rig) -> None:
    client = rig.client()
    client.start()
    rig.wait_confirmed(commit(rig.store, 1))
    killed = client.process_id
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: client.process_id is None)
    started_at = time.monotonic()
    for step in (2, 3):
        name = commit(rig.store, step)
        client.nudge()
    wait_for(lambda: client.start() or client.process_id is not None)  # type: ignore[func-returns-value]
    rig.wait_confirmed(name)
    os.kill(client.process_id, signal.SIGKILL)  # type: ignore[arg-type]
    wait_for(lambda: client.process_id is None)
    client.start()
    if time.monotonic() - started_at < 2.0:
        assert client.process_id is None
    assert client.num_restarts >= 1


def test_the_copier_of_an_earlier_training_goes_first(rig: Rig) -> None:
    first, second = rig.client(), rig.client()
    first.start()
    rig.wait_confirmed(commit(rig.store, 1))
    second.start()
    name = commit(rig.store, 2)
    rig.wait_confirmed(name)
    first.close()
    assert first.wait(PATIENCE_SECONDS) or second.process_id is not None
    last = commit(rig.store, 3)
    rig.wait_confirmed(last)
    assert rig.status().state != "fenced"


def test_one_whose_place_is_away_leaves_the_rest_to_that_of_the_next_training(rig: Rig) -> None:
    """Which tries at once, when the place is back: the older one would come in minutes."""
    folder = rig.place / "not"
    rig.place = folder / "mounted"
    name = commit(rig.store, 1)
    first = rig.client()
    first.start()
    wait_for(lambda: rig.status().num_failures > 0)
    first.close()
    assert not first.wait(2.0), "nobody else would copy it"
    second, third = rig.client(), rig.client()
    second.start()
    assert first.wait(PATIENCE_SECONDS)
    second.close()  # a command that was broken off, and given again
    folder.mkdir(parents=True)
    third.start()
    rig.wait_confirmed(name)
    assert second.wait(PATIENCE_SECONDS)


def test_one_whose_training_goes_on_leaves_the_place_to_nobody(rig: Rig) -> None:
    rig.place = rig.place / "not/mounted"
    commit(rig.store, 1)
    first, second = rig.client(), rig.client()
    first.start()
    wait_for(lambda: rig.status().num_failures > 0)
    second.start()
    time.sleep(3.0)
    assert first.process_id is not None


def test_an_unreachable_place_blocks_nobody_and_is_reported_with_advice(rig: Rig) -> None:
    rig.place = rig.place / "not/mounted"
    client = rig.client()
    begin = time.monotonic()
    client.start()
    for step in range(1, 6):
        commit(rig.store, step)
        client.nudge()
    assert time.monotonic() - begin < PATIENCE_SECONDS
    wait_for(lambda: rig.status().error is not None)
    status = rig.status()
    assert status.state == "retrying"
    assert (
        short_words(status, time.time())
        == "backup.short_status_none_confirmed(failing=backup.copying_fails())"
    )
    assert "backup.advice_mount_disk" in str(status.advice)


def test_it_loads_little() -> None:
    """Each run starts a copier and a writer, which have to begin at once and stay small."""
    probe = """
import sys
import infrastructure.backup.replication.copier_process
import infrastructure.backup.writer.writer_process
assert not {"torch", "numpy", "pydantic"} & set(sys.modules)
import infrastructure.backup.run_backup
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", probe], check=True, cwd=PACKAGE_PARENT)


def test_a_copier_that_cannot_run_is_reported_with_its_last_words_within_seconds(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where something of its own cannot be imported: nobody waits for what never comes."""
    monkeypatch.setattr(copier_client, "MODULE", "infrastructure.backup.no_such_process")
    name = commit(rig.store, 7)
    options = BackupConfig(place=str(rig.place))
    with RunBackup(rig.store.root, options, run_id="run-1", status_path=rig.status_path) as backup:
        backup.start()
        wait_for(lambda: backup.look_after() or rig.status().state == "down")  # type: ignore[func-returns-value]
        begin = time.monotonic()
        status = backup.finish(PATIENCE_SECONDS)
        assert time.monotonic() - begin < PATIENCE_SECONDS / 2
        assert status == rig.status(), "what other processes read"
        assert (status.state, status.newest_name, status.newest_step) == ("down", name, 7)
        assert status.num_failures == backup.num_copier_failures == MANY_FAILURES
        assert "No module named infrastructure.backup.no_such_process" in str(status.error)
        assert str(status.error) in status.possible_loss(time.time()).text
        assert short_words(status, time.time()) == "backup.short_status_not_copying()"
        assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "ERROR"]
        assert "no_such_process" in caplog.records[-1].getMessage()
        monkeypatch.setattr(copier_client, "MODULE", MODULE)
        backup.try_again()
        rig.wait_confirmed(name)
        assert backup.status().state == "idle"


def test_a_copier_for_which_there_is_no_process_costs_the_training_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(copier_client, "HelperProcess", refuse)
    client = rig.client()
    for _ in range(3):
        client.start()
        client.try_again()
    assert client.num_failures == 1, "not too often"
    assert client.failure == "backup.copier_start_failed(error=Resource temporarily unavailable)"


PLACE = """
import temper
from pathlib import Path


class Place(temper.FolderPlace):
    def __init__(self, url):
        super().__init__(Path(url.partition("://")[2]))

    def sweep(self, directory):
        {fault}
"""


@pytest.mark.parametrize(
    ("fault", "state", "text"),
    [
        ("assert None, 'not a place'", "down", "AssertionError: not a place at own_place.py:11"),
        ("{}['row']", "retrying", "KeyError: 'row' at own_place.py:11 (sweep)"),
    ],
)
def test_a_fault_of_ones_own_place_is_named_and_its_traceback_kept(
    fault: str, state: str, text: str, rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_place.py").write_text(PLACE.format(fault=fault))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(copier_client, "MANY_FAILURES", 1)
    commit(rig.store, 7)
    kept = tmp_path / "run-1/logs/errors/copier.txt"
    options = BackupConfig(place=f"own_place:Place://{rig.place}", finish_seconds=0.5)
    with RunBackup(
        rig.store.root,
        options,
        run_id="run-1",
        status_path=rig.status_path,
        traceback_path=kept,
    ) as backup:
        backup.start()
        wait_for(lambda: backup.look_after() or rig.status().state == state)  # type: ignore[func-returns-value]
        assert text in str(rig.status().error)
    assert 'own_place.py", line 11, in sweep' in kept.read_text()
    sys.modules.pop("own_place", None)


class InProcess:
    """The loop of a copier in this process, in simulated time, with scripted input."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rig = CopierRig(directory)
        self.clock, self.path = self.rig.clock, directory / "backup.json"
        self.input: list[bytes | None] = []
        now = SimpleNamespace(monotonic=self.clock, sleep=self.clock.sleep)
        monkeypatch.setattr(copier_process, "time", now)
        monkeypatch.setattr(copier_process, "_input_within", self._read)

    def _read(self, seconds: float) -> bytes | None:
        assert 0.0 <= seconds <= copier_process.POLL_SECONDS
        self.clock.now += seconds
        return self.input.pop(0) if self.input else None

    def serve(self, finish_seconds: float = 100.0, *, is_succeeded: bool = False) -> BackupStatus:
        copier_process.serve(
            self.rig.copier, StatusFile(self.path), finish_seconds, lambda: is_succeeded
        )
        return read_status(self.path)


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    return InProcess(tmp_path, monkeypatch)


def test_the_input_is_read_line_by_line_until_it_ends(
    inside: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final/config.json").write_text("{}")
    line = Publication("token", str(tmp_path / "final"), "final").to_line().encode()
    name = commit(inside.rig.local, 1)
    inside.input = [b"\n", None, b"look mi", b"ne\n" + line[:9], line[9:] + b"\n\n"]
    inside.input += [None] * 200 + [b""]
    nudges, nudge = list[float](), inside.rig.copier.nudge

    def noted() -> None:
        nudges.append(inside.clock.now)
        nudge()

    monkeypatch.setattr(inside.rig.copier, "nudge", noted)
    status = inside.serve()
    assert len(nudges) == 5, "three pieces with a line's end, and two requests"
    assert (status.state, status.confirmed_name, status.last_look) == ("finished", name, "mine")
    assert status.published_folders == {"token": "memory:here/run-1/final"}
    assert inside.clock.now < 1100.0


def test_the_end_of_the_input_is_the_time_for_a_last_look(inside: InProcess) -> None:
    name = commit(inside.rig.local, 1)
    inside.input = [b""]
    status = inside.serve()
    assert (status.state, status.confirmed_name, status.last_look) == ("finished", name, "end")


@pytest.mark.parametrize("fault", ["no answer", "another run", "a writer"])
def test_what_is_not_safe_in_time_is_left(inside: InProcess, fault: str) -> None:
    if fault == "another run":
        inside.rig.copy(1)
        inside.clock.now += 60.0
    else:
        commit(inside.rig.local, 1)
    lock = Lock(inside.rig.local.root / "lock")
    if fault == "no answer":
        inside.rig.place.fault = disconnected
    elif fault == "another run":
        stranger = {"model/w": TensorBytes("U8", (1,), b"x")}
        Store(Path("run-1"), inside.rig.place.files).commit(stranger, {}, step=9)
    else:
        lock.take()
    inside.input = [b""]
    began = inside.clock.now
    status = inside.serve(40.0)
    lock.release()
    assert status.state == "left"
    waited = inside.clock.now - began
    assert waited < 10.0 if fault == "another run" else 40.0 < waited <= 41.0


@pytest.mark.parametrize("is_succeeded", [True, False])
def test_a_copier_that_fails_leaves_the_rest_to_its_successor(
    inside: InProcess, is_succeeded: bool
) -> None:
    commit(inside.rig.local, 1)
    inside.rig.place.fault = disconnected
    inside.input = [None, b""]
    status = inside.serve(40.0, is_succeeded=is_succeeded)
    assert status.state == ("retrying" if is_succeeded else "left")
    assert (inside.clock.now < 1010.0) is is_succeeded


def test_a_store_is_written_to_as_long_as_its_lock_is_held(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert not _is_written_to(store)
    store.prepare()
    assert not _is_written_to(store)
    lock = Lock(store.root / "lock")
    lock.take()
    assert _is_written_to(store)
    lock.release()
    lock = Lock(store.root / "lock")
    lock.take(shared=True)
    assert not _is_written_to(store), "readers change nothing"
    lock.release()
    assert not _is_written_to(store)


def test_settings_are_the_first_line_and_the_rest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(copier_process, "INPUT", reading)
    os.write(writing, b'{"a": 1}\nrest')
    assert copier_process._first_line() == b'{"a": 1}\n'
    assert copier_process._input_within(0.0) == b"rest"
    assert copier_process._input_within(0.0) is None
    os.write(writing, b"no end")
    os.close(writing)
    with pytest.raises(SystemExit, match="no settings"):
        copier_process._first_line()
    assert copier_process._input_within(0.0) == b""
    os.close(reading)


def test_as_many_files_may_be_open_as_the_system_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, both: limits.append((kind, both)))
    copier_process._allow_many_files()
    assert limits == [(resource.RLIMIT_NOFILE, (4096, 4096))]
