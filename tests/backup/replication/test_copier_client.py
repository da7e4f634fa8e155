"""A copier that ends is restarted after growing delays, and gets all requests again."""

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from infrastructure.backup.replication import copier_client
from infrastructure.backup.replication.copier_client import MANY_FAILURES, CopierClient
from infrastructure.backup.replication.copier_process import LOOK, CopierSettings
from infrastructure.backup.replication.folder_upload import Publication
from tests.faults.drive_model import Clock


class FakeProcess:
    """A process that ends when the test says so."""

    made: ClassVar[list["FakeProcess"]] = []

    def __init__(self, module: str, **_: object) -> None:
        self.code: int | None = None
        self.ends, self.waited = True, list[float]()
        self.stdin = io.BytesIO()
        self.pid = 100 + len(self.made)
        self.made.append(self)

    def poll(self) -> int | None:
        return self.code

    def fate(self) -> str:
        return f"ended with {self.code}"

    def close_pipes(self) -> None:
        pass

    def ends_within(self, seconds: float) -> bool:
        self.waited.append(seconds)
        return self.ends

    def lines(self) -> list[str]:
        return self.stdin.getvalue().decode().splitlines()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(1000.0)
    monkeypatch.setattr(copier_client, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(copier_client, "HelperProcess", FakeProcess)
    FakeProcess.made.clear()
    return clock


@pytest.fixture
def client(tmp_path: Path) -> CopierClient:
    folders = (str(tmp_path / name) for name in ("store", "place"))
    return CopierClient(CopierSettings(*folders, "run", str(tmp_path / "status.json")))


def seconds_to_restart(client: CopierClient, clock: Clock, most: int = 1000) -> int:
    """After the death of the process; the client is asked every second."""
    num_made, began = len(FakeProcess.made), clock.now
    while len(FakeProcess.made) == num_made:
        assert clock.now - began < most
        clock.now += 1.0
        client.start()
    return round(clock.now - began)


def live(client: CopierClient, clock: Clock, seconds: float) -> None:
    """Let the process run so long, and end."""
    clock.now += seconds
    FakeProcess.made[-1].code = 1
    client.start()


def test_after_each_failure_in_a_row_it_waits_twice_as_long(
    client: CopierClient, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    client.settings = replace(client.settings, place="sftp://me:pa55word@host/x")
    client.start()
    waits = []
    for _ in range(12):
        live(client, clock, 0.5)
        waits.append(seconds_to_restart(client, clock))
    assert waits[:4] == [1, 2, 4, 8]
    assert waits[-2:] == [300, 300]
    assert (client.num_failures, client.num_restarts) == (12, 12)
    assert client.failure == "ended with 1"
    restarts = "backup.copier_restarts(reason=ended with 1)"
    url = client.settings.place.replace("me:pa55word", "***")
    values = f"count=3, reason=ended with 1, url={url}"
    logged = [(record.levelname, record.getMessage()) for record in caplog.records]
    failing = ("ERROR", f"backup.copier_keeps_failing({values})")
    assert logged == [("WARNING", restarts), ("WARNING", restarts), failing]


@pytest.mark.parametrize(("seconds", "num_failures"), [(59.0, 4), (61.0, 1)])
def test_a_minute_without_a_failure_is_a_new_beginning(
    client: CopierClient, clock: Clock, seconds: float, num_failures: int
) -> None:
    client.start()
    for _ in range(MANY_FAILURES):
        live(client, clock, 0.5)
        assert client.cannot_run is (client.num_failures == MANY_FAILURES)
        seconds_to_restart(client, clock)
    live(client, clock, seconds)
    assert client.num_failures == num_failures


@pytest.mark.parametrize(("seconds", "num_failures"), [(59.0, 1), (61.0, 0)])
def test_a_failure_is_forgotten_while_the_next_process_runs(
    client: CopierClient, clock: Clock, seconds: float, num_failures: int
) -> None:
    client.start()
    live(client, clock, 0.5)
    seconds_to_restart(client, clock)
    clock.now += seconds
    client.start()
    assert client.num_failures == num_failures
    assert (client.failure is None) is (num_failures == 0)


def test_a_restarted_copier_gets_its_requests_again(
    client: CopierClient, clock: Clock, tmp_path: Path
) -> None:
    what = Publication("token", str(tmp_path / "final"), "final")
    client.start()
    client.look_again("first")
    client.publish(what)
    client.look_again("second")
    first = FakeProcess.made[-1]
    assert first.lines()[1:] == [LOOK + "first", what.to_line(), LOOK + "second"]
    live(client, clock, 0.5)
    seconds_to_restart(client, clock)
    again = FakeProcess.made[-1].lines()
    assert json.loads(again[0]) == json.loads(first.lines()[0])
    assert again[1:] == [what.to_line(), LOOK + "second"]


def test_a_restart_can_be_requested_without_waiting(client: CopierClient, clock: Clock) -> None:
    client.start()
    for _ in range(MANY_FAILURES):
        live(client, clock, 0.5)
        if client.num_failures < MANY_FAILURES:
            seconds_to_restart(client, clock)
    num_made = len(FakeProcess.made)
    client.start()
    assert len(FakeProcess.made) == num_made, "it waits"
    assert client.process_id is None
    client.try_again()
    assert len(FakeProcess.made) == num_made + 1
    assert client.process_id == FakeProcess.made[-1].pid


@pytest.mark.parametrize("ends", [True, False])
def test_a_copier_that_still_copies_is_kept_and_can_be_waited_for(
    client: CopierClient, clock: Clock, ends: bool
) -> None:
    client.start()
    (process,) = FakeProcess.made
    process.ends = ends
    assert client.is_started
    client.close(3.0)
    assert (client.is_started, client.process_id, process.waited) == (False, None, [3.0])
    assert (process in copier_client._LEFT_TO_FINISH) is not ends
    assert client.wait(5.0) is ends
    process.ends = True
    assert client.wait(6.0)
    assert process.waited == ([3.0] if ends else [3.0, 5.0, 6.0])
    assert process not in copier_client._LEFT_TO_FINISH
