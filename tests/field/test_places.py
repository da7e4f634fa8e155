"""Field cases of the ways in and out of the machine: backup destinations, downloads, webhooks."""

import email.utils
import json
import os
import signal
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from colab import remote_files
from colab.fetching_data import fetch_file, fetch_from_hub
from colab.remote_files import MountedFile
from infrastructure.backup.backends.base import Content, Evidence
from infrastructure.backup.backends.folder import FolderPlace
from infrastructure.backup.finished_run import Completion, complete
from infrastructure.backup.format.store import Store
from infrastructure.backup.replication.second_looks import LOOK_AGAIN_SECONDS, MOST_LOOKS_PER_HOUR
from infrastructure.backup.run_backup import RunBackup
from infrastructure.commands.main import main
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.config.sections.resource_config import AlertThresholds
from infrastructure.core.checksums import damaged_files
from infrastructure.core.errors import DataError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.deployment.export import Comparer
from infrastructure.features.notifications import alert_queue
from infrastructure.features.notifications.alert_queue import QueuedSink
from infrastructure.features.notifications.webhook import VARIABLE, WebhookAlerts
from infrastructure.monitoring.training_monitor import ALERTS_FILE, SUMMARY_FILE, TrainingMonitor
from infrastructure.monitoring.watching.alert_sinks import (
    AlertSink,
    ConsoleAlerts,
)
from infrastructure.monitoring.watching.alerts import Alert
from infrastructure.run import replication
from tests.backup.memory_place import RUN, save
from tests.backup.replication.test_copier import Rig
from tests.colab.fetching import HURRIED, ROWS, fetch, visible, web
from tests.colab.file_server import FileServer, Served, file_server
from tests.colab.test_hub_data import ADDRESS, pinned, serve
from tests.colab.test_hub_data import PATH as HUB_PATH
from tests.deployment.runs import deploy, small_config
from tests.features.notifications.test_webhook import alert
from tests.features.notifications.webhook_server import alerts_to, webhook_server
from tests.slow import slow_but
from tests.training.methods.method_runs import in_fork

__all__ = ["file_server"]
CHANGED = ROWS.replace(b"?", b"!")


def shared_object(rig: Rig, name: str) -> Path:
    """The object that all versions name."""
    manifest = rig.local.read(name)
    return rig.remote.objects.path_of(manifest.packs[manifest.tensors["frozen/base"].pack].hash)


def test_f8_what_a_destination_lost_is_not_confirmed_by_an_earlier_look(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    name = rig.copy(20)
    path = shared_object(rig, name)
    del rig.place.files.files[path]
    newest = rig.copy(40)
    assert newest != name
    assert path in rig.place.files.files
    rig.remote.verify(rig.remote.read(newest))


def test_f8_a_look_finds_a_loss_withdraws_the_claim_and_repairs_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.copy(20)
    name = rig.copy(40)
    before = rig.copier.status()
    path = shared_object(rig, name)
    data = rig.place.files.files.pop(path)
    lost_at = rig.clock.now
    rig.run_until(lambda: rig.copier.status().confirmed_name is None)
    assert rig.clock.now - lost_at <= LOOK_AGAIN_SECONDS + 60
    assert name[:12] in str(rig.copier.status().error)
    rig.run_until(lambda: rig.copier.status().is_safe)
    assert rig.place.files.files[path] == data
    status = rig.copier.status()
    assert status.confirmed_name == name
    assert status.compared_at is not None
    assert before.compared_at is not None
    assert status.compared_at > before.compared_at
    assert status.error is None


def test_f8_a_loss_that_cannot_be_repaired_is_named_and_the_version_before_counts(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path)
    first, second = rig.copy(1), rig.copy(2)
    own = {p.hash for p in rig.local.read(second).packs} - {
        p.hash for p in rig.local.read(first).packs
    }
    lost = rig.remote.objects.path_of(min(own))
    rig.local.remove_all_but([first])  # this machine does not hold it any more
    del rig.place.files.files[lost]
    rig.run_until(lambda: rig.copier.status().confirmed_name != second)
    status = rig.copier.status()
    assert status.confirmed_name == first
    assert second[:12] in str(status.error)
    assert "backup.cannot_be_copied_again" in str(status.error)
    rig.place.removed.clear()
    third = rig.copy(3)
    assert rig.copier.status().confirmed_name == third
    assert rig.remote.manifest_path(first) in rig.place.files.files, "two whole ones are kept"


def test_f8_the_look_at_the_end_is_at_what_was_copied_last(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.copy(1)
    rig.copier.look_at_the_end()
    rig.run_until(lambda: rig.copier.has_looked)
    path = shared_object(rig, rig.copy(2))
    data = rig.place.files.files.pop(path)
    rig.copier.look_at_the_end()
    assert not rig.copier.has_looked
    rig.run_until(lambda: rig.copier.has_looked)
    assert rig.place.files.files[path] == data
    rig.copier.look_at_the_end()
    assert rig.copier.has_looked, "nothing was copied since"


def test_f8_looks_keep_to_their_bound_of_questions(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.copy(1)
    rig.copy(2)
    looks: list[Path] = []

    def count(operation: str, path: Path) -> None:
        if operation in ("confirm", "size") and path.is_relative_to(RUN):
            looks.append(path)

    rig.place.fault = count
    began = rig.clock.now
    while rig.clock.now < began + 3600:
        rig.clock.now += rig.copier.tick()
    num_files = len({*looks})
    assert num_files == 2 + 5  # manifests; a shared object, and two that each has alone
    assert len(looks) == pytest.approx(num_files * 3600 / LOOK_AGAIN_SECONDS, abs=num_files)
    assert len(looks) <= MOST_LOOKS_PER_HOUR


def test_f8_the_status_names_how_the_bytes_were_compared(tmp_path: Path) -> None:
    content = Content.of([b"abc"], FolderPlace(tmp_path).hashes)
    mounts = tmp_path / "mounts"
    for kind, expected in (("ext4", Evidence.READ_BACK), ("fuse.rclone", Evidence.MOUNT)):
        mounts.write_text(f"disk {tmp_path} {kind} rw 0 0\n")
        place = FolderPlace(tmp_path / "place", mounts=mounts)
        place.write(Path("file"), [b"abc"])
        assert place.confirm(Path("file"), content) == expected


def test_f8_the_end_of_a_run_looks_once_more(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    options = BackupConfig(place=str(place), finish_seconds=120)
    backup = RunBackup(tmp_path / "run" / "checkpoints", options, run_id=RUN)
    with backup:
        for step in (1, 2):
            save(backup.store, step)
            status = backup.finish()
            assert status.is_safe
        assert status.compared_by == Evidence.READ_BACK
        remote = Store(place / RUN)
        manifest = remote.read(remote.versions()[0])
        gone, damaged = (remote.objects.path_of(pack.hash) for pack in manifest.packs[:2])
        gone.unlink()
        damaged.write_bytes(bytes(damaged.stat().st_size))
        assert backup.status().is_safe, "nobody has looked since"
        status = backup.finish()
        assert status.is_safe
        remote.verify(manifest)


def test_f8_a_trained_model_that_a_destination_lost_is_copied_again(tmp_path: Path) -> None:
    place, final = tmp_path / "place", tmp_path / "run" / "final"
    place.mkdir()
    final.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (final / name).write_text(name * 9)
    options = BackupConfig(place=str(place), finish_seconds=120)
    with RunBackup(tmp_path / "run" / "checkpoints", options, run_id=RUN) as backup:
        save(backup.store, 1)
        there = Path(backup.publish(final))
        (there / "model.safetensors").unlink()
        (there / "config.json").write_text("?" * 99)
        status = backup.finish()
        assert [*status.published_folders.values()] == [str(there)]
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert (there / name).read_text() == name * 9


def test_p5_a_destination_that_can_never_work_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.txt").write_text("a b c\n" * 20)
    assert main(["train", "rows.txt", "--backup-place", "memory://x"]) == ExitCode.WRONG_INPUT
    assert "memory://x" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    with pytest.raises(ValueError, match="memory"):
        RunBackup(tmp_path / "checkpoints", BackupConfig(place="memory://x"))


@pytest.mark.parametrize(
    "after",
    [
        Served(CHANGED, etag='"v2"', ignores_if_range=True),
        Served(CHANGED, etag=None, ignores_if_range=True),
        Served(CHANGED + b"{}\n", etag='"v1"', ignores_if_range=True),
        Served(CHANGED, etag='W/"v1"', ignores_if_range=True),
    ],
    ids=["another etag", "no etag", "another length", "a weak etag"],
)
def test_p1_the_end_of_another_version_is_never_put_behind_a_beginning(
    after: Served, file_server: FileServer, tmp_path: Path
) -> None:
    file_server.files["/rows.jsonl"] = Served(ROWS, cuts=[5000], then=after)
    assert fetch(web(file_server), tmp_path).read_bytes() == after.data


def test_p1_another_date_is_another_version(file_server: FileServer, tmp_path: Path) -> None:
    first, then = ({"Last-Modified": f"Mon, 0{day} Jan 2024 00:00:00 GMT"} for day in (1, 2))
    after = Served(CHANGED, headers=then, etag=None, ignores_if_range=True)
    file_server.files["/rows.jsonl"] = Served(
        ROWS, headers=first, etag=None, cuts=[5000], then=after
    )
    assert fetch(web(file_server), tmp_path).read_bytes() == CHANGED


def test_p1_a_mounted_file_that_changes_while_it_is_read_is_read_again_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted = tmp_path / "drive" / "MyDrive" / "rows.jsonl"
    mounted.parent.mkdir(parents=True)
    mounted.write_bytes(ROWS)
    monkeypatch.setattr(remote_files, "CHUNK_BYTES", 5000)
    real, changes = MountedFile._query, iter([CHANGED])

    def query(self: MountedFile, question: object) -> object:
        found = real(self, question)  # type: ignore[arg-type]
        if isinstance(found, bytes) and (data := next(changes, None)) is not None:
            mounted.write_bytes(data)
        return found

    monkeypatch.setattr(MountedFile, "_query", query)
    local = tmp_path / "local"
    path = fetch_file(MountedFile(mounted, 20), None, local, 60, HURRIED)
    assert path.read_bytes() == CHANGED


def test_p1_the_hub_s_file_is_of_one_commit_and_has_the_hash_that_the_hub_names(
    file_server: FileServer, tmp_path: Path
) -> None:
    serve(file_server, ROWS)
    file_server.files[HUB_PATH] = Served(
        ROWS,
        headers=file_server.files[HUB_PATH].headers,
        etag=file_server.files[HUB_PATH].etag,
        then=Served(CHANGED, headers={"X-Repo-Commit": "b" * 40}, etag='"v2"'),
    )
    path = fetch_from_hub(ADDRESS, None, tmp_path / "one", file_server.url)
    assert path.read_bytes() == ROWS
    serve(file_server, ROWS)
    file_server.files[pinned(HUB_PATH)].data = CHANGED  # a cache on the way gives another one
    with pytest.raises(DataError, match=r"notebook\.hub_file_damaged\(address=hf://.*rows"):
        fetch_from_hub(ADDRESS, None, tmp_path / "two", file_server.url)
    assert visible(tmp_path / "two") == []


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_p2_a_redirect_on_the_same_host_takes_the_alert_along(code: int) -> None:
    with webhook_server() as server:
        server.answers = [(code, {"Location": "/moved/SECRET"})]
        sink = alerts_to(server.url, "run-7")
        sink.send(alert(3))
        sink.close()
    assert server.paths == ["/hooks/SECRET", "/moved/SECRET"]
    first, second = server.received
    assert first == second
    assert second["step"] == 3
    assert sink.lost == (0, "")


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_p2_a_redirect_elsewhere_is_not_followed_and_the_alert_is_reported_as_lost(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    with webhook_server() as server, webhook_server() as other:
        address = other.url.replace("127.0.0.1", "localhost")
        for target in (address, other.url):  # another host; another port
            server.answers = [(code, {"Location": target})]
            sink = alerts_to(server.url)
            sink.send(alert(3))
            sink.close()
            num_lost, why = sink.lost
            assert (num_lost, str(code) in why) == (1, True)
        assert other.received == []
    assert "SECRET" not in caplog.text


def test_p3_the_end_of_a_run_waits_as_long_as_the_server_wants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with webhook_server() as server:
        server.answers = [(429, {"Retry-After": "6"})]
        sink = alerts_to(server.url)
        sink.send(alert(3))
        while sink._pauses_until < 0:
            time.sleep(0.01)
        monkeypatch.setattr(alert_queue, "CLOSE_SECONDS", 5.0)
        sink.close()
    assert [each["step"] for each in server.received] == [3, 3]
    assert sink.lost == (0, "")


def test_p3_a_date_is_waited_for_as_seconds_are(monkeypatch: pytest.MonkeyPatch) -> None:
    later = email.utils.format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    waited: list[float] = []
    with webhook_server() as server:
        server.answers = [(503, {"Retry-After": later})]
        sink = alerts_to(server.url)
        monkeypatch.setattr(sink, "pause", waited.append)
        sink.send(alert(3))
        sink.close()
    assert len(server.received) == 2
    (seconds,) = waited
    assert 1 < seconds <= 20
    assert sink.lost == (0, "")


def test_p3_what_was_not_delivered_stands_in_the_report_and_the_summary(tmp_path: Path) -> None:
    lines: list[str] = []
    with webhook_server() as server:
        server.answers = [404] * 9
        sink = alerts_to(server.url)
        sinks: list[AlertSink] = [sink, ConsoleAlerts(lines.append)]
        thresholds = AlertThresholds().copy_with(memory_percent=0.0)
        monitor = TrainingMonitor(tmp_path, thresholds=thresholds, sinks=sinks)
        monitor.sample()
        monitor.sample()
        monitor.stop_monitoring()
    num_lost, _ = sink.lost
    assert num_lost == len(server.received) > 0
    summary = json.loads((tmp_path / SUMMARY_FILE).read_text())
    assert summary["alerts"]["lost"] == {"webhook": num_lost}
    records = [json.loads(line) for line in (tmp_path / ALERTS_FILE).read_text().splitlines()]
    last = [record for record in records if record["rule"] == "lost_alerts"][-1]
    assert (last["value"], "404" in last["message"]) == (num_lost, True)
    assert any(f"monitoring.alerts_not_delivered(count={num_lost}, " in line for line in lines)
    assert "SECRET" not in (tmp_path / ALERTS_FILE).read_text()


def test_p3_more_alerts_than_fit_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    sink = alerts_to("http://127.0.0.1:9/", wait_seconds=30.0)  # no server listens there
    for number in range(300):
        sink.send(alert(number))
    num_lost, _ = sink.lost
    assert num_lost in (199, 200)  # one may be on its way


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1/SECRET",
        "http://host:port/SECRET",
        "https://hooks.example/SECRETü",
        "https://hööks.example/SECRET",
        "https://hooks.example/SEC RET",
        "https://hooks.example/SECRET\n",
        "https://user:SECRET@hooks.example/x",
    ],
)
def test_p4_an_address_that_cannot_be_posted_to_is_refused_before_the_first_step(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, url)
    with pytest.raises(ValueError, match=VARIABLE) as caught:
        WebhookAlerts.check_usable()
    assert "SECRET" not in str(caught.value)
    monkeypatch.setenv(VARIABLE, "https://[::1]:8443/services/T0/B0?x=%C3%BC")
    WebhookAlerts.check_usable()


def test_p4_an_alert_that_breaks_its_sender_loses_no_other() -> None:
    taken: list[int] = []

    class Mine(QueuedSink):
        name = "mine"

        def deliver(self, alert: Alert) -> str:
            if alert.step == 1:
                raise UnicodeEncodeError("ascii", "ü", 0, 1, "ordinal not in range")
            taken.append(alert.step)
            return ""

    alerts = Mine()
    for number in (1, 2, 3):
        alerts.send(alert(number))
    alerts.close()
    assert taken == [2, 3]
    assert alerts.lost == (1, "it failed (UnicodeEncodeError)")


@pytest.mark.parametrize("is_there", slow_but([True], [False, True]))
def test_f18_an_export_killed_in_its_read_back_can_be_run_again(
    is_there: bool, tmp_path: Path
) -> None:
    run, _ = deploy(small_config(tmp_path, max_steps=1))
    out = tmp_path / "out"
    if is_there:
        out.mkdir()
    command = ["export", str(run), str(out)]

    def killed() -> None:
        def kill(*_: object, **__: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        Comparer.__call__ = kill  # type: ignore[method-assign, assignment]
        main(command)

    assert in_fork(killed) == signal.SIGKILL
    assert [*out.glob("*")] == []
    assert any(tmp_path.glob(".out.*.part/*"))
    assert main(command) == ExitCode.DONE
    assert damaged_files(out) == []
    assert not any(tmp_path.glob(".out.*"))


def test_f8_a_run_does_not_end_as_confirmed_with_what_its_destination_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    place.mkdir()

    def loses(backup: RunBackup, *arguments: Any, **others: Any) -> Completion:
        backup.finish(120)
        first, second, *_ = sorted(path for path in place.rglob("objects/*/*"))
        first.unlink()
        second.write_bytes(first.name.encode())
        return complete(backup, *arguments, **others)

    monkeypatch.setattr(replication, "complete", loses)
    config = small_config(tmp_path, max_steps=6, checkpoint_frequency=2)
    config.backup.place = str(place)
    run, _ = deploy(config)
    copies = json.loads((run / "summary.json").read_text())["backup"]
    assert "problem" not in copies
    assert (copies["confirmed_step"], copies["compared_by"]) == (6, "read-back")
    assert copies["present_at"] >= copies["confirmed_at"]
    remote = Store(place / run.name)
    newest, rejected = remote.newest()
    assert (newest, rejected) == (copies["confirmed_name"], [])
    remote.verify(remote.read(remote.versions()[0]))


def test_f8_a_status_is_the_same_until_something_was_seen_or_done(tmp_path: Path) -> None:
    """Each one that differs is written to the disk."""
    rig = Rig(tmp_path)
    rig.copy(1)
    rig.copier._now = lambda: rig.clock.now + 5e8 + 0.001 * (time.perf_counter() % 1)
    first = rig.copier.status()
    rig.clock.now += 0.5
    again = rig.copier.status()
    assert replace(first, changed_at=None) == replace(again, changed_at=None)
    assert first.present_at is not None
    assert abs(first.present_at - 5e8 - rig.clock.now) < 90
