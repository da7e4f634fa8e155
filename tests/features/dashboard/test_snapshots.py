"""Looks are made once for all viewers, and cost next to nothing."""

import logging
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infrastructure.features.dashboard.snapshots import Looks
from infrastructure.monitoring.report.live_parts import MAX_LONGEST_SECONDS
from tests.monitoring.written_run import add, falling, step_record, write_run


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def looks_at() -> Iterator[Callable[..., Looks]]:
    """Makes looks whose files are closed at the end."""
    made: list[Looks] = []

    def make(*arguments: Any, **options: Any) -> Looks:
        made.append(Looks(*arguments, **options))
        return made[-1]

    yield make
    for looks in made:
        looks.close()


def test_a_look_is_shared_until_its_time_is_over(
    looks_at: Callable[..., Looks], tmp_path: Path
) -> None:
    directory, clock = write_run(tmp_path), Clock()
    add(directory, *falling(1, 10))
    looks = looks_at(tmp_path, clock=clock, cpu_clock=Clock())
    first = looks.look()
    add(directory, step_record(20))
    assert looks.look() is first
    assert (first.title, first.next_seconds) == ("25.0% · 20260101-a · Temper", 2.0)
    clock.now = 1.7
    assert looks.look() is first
    clock.now = 1.8  # nine tenths, so that a page that asks in time has new numbers
    second = looks.look()
    assert "step 20" in second.sections["progress"]
    assert second.version != first.version


def test_a_run_that_is_over_is_looked_at_less_often(
    looks_at: Callable[..., Looks], tmp_path: Path
) -> None:
    write_run(tmp_path, "a", status="finished")
    look = looks_at(tmp_path, cpu_clock=Clock()).look()
    assert (look.title, look.next_seconds) == ("a · Temper", 10.0)
    nothing = looks_at(tmp_path / "none", cpu_clock=Clock()).look()
    assert (nothing.title, nothing.next_seconds) == ("Temper", 2.0)
    assert f"dashboard.empty(folder={tmp_path / 'none'})" in nothing.sections["head"]


def test_looks_that_cost_much_are_made_less_often(
    looks_at: Callable[..., Looks], tmp_path: Path
) -> None:
    """At most one percent of one core, whoever looks."""
    add(write_run(tmp_path), *falling(1, 10))
    clock, cpu = Clock(), Clock()

    def busy() -> float:
        cpu.now += 0.1  # seconds between two readings
        return cpu.now

    looks = looks_at(tmp_path, clock=clock, cpu_clock=busy)
    assert looks.look().next_seconds == 10
    cpu.now = 0.0
    slow = looks_at(tmp_path, clock=clock, cpu_clock=iter([0.0, 99.0]).__next__)
    assert slow.look().next_seconds == MAX_LONGEST_SECONDS


def test_the_newest_run_is_followed_unless_one_was_requested(
    looks_at: Callable[..., Looks], tmp_path: Path
) -> None:
    clock = Clock()
    old = write_run(tmp_path, "2025-a")
    followed, fixed = looks_at(tmp_path, clock=clock), looks_at(tmp_path, old, clock=clock)
    assert "2025-a" in followed.look().title
    write_run(tmp_path, "2026-b")
    assert "2026-b" in followed.look().title
    assert "2025-a" in followed.look("2025-a").title
    assert "2025-a" in fixed.look().title
    assert "2026-b" in fixed.look("2026-b").title


def test_a_name_that_is_not_listed_opens_nothing(
    looks_at: Callable[..., Looks], tmp_path: Path
) -> None:
    write_run(tmp_path / "runs", "2025-a")
    write_run(tmp_path, "secret")
    looks = looks_at(tmp_path / "runs")
    for name in ("../secret", str(tmp_path / "secret"), "", "."):
        unknown = f"dashboard.unknown_run(name={name}, folder={tmp_path / 'runs'})"
        with pytest.raises(ValueError, match=re.escape(unknown)):
            looks.look(name)
    looks.close()
    with pytest.raises(ConnectionAbortedError):
        looks.look()


def test_before_there_is_a_run_the_page_names_that_and_then_shows_the_first(
    looks_at: Callable[..., Looks], tmp_path: Path
) -> None:
    clock = Clock()
    looks = looks_at(tmp_path / "runs", clock=clock)
    assert "monitoring.no_run_yet()" in looks.look().sections["head"]
    write_run(tmp_path / "runs", "2025-a")
    assert "2025-a" in looks.look().title


def test_a_run_that_cannot_be_shown_gives_the_reason_and_is_logged_once(
    looks_at: Callable[..., Looks], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory, clock = write_run(tmp_path), Clock()
    (directory / "metrics.jsonl").mkdir()
    looks = looks_at(tmp_path, clock=clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            look = looks.look()
            why = "dashboard.run_not_shown_on_page(error_type=IsADirectoryError, error="
            assert why in look.sections["notices"]
            assert (look.title, look.next_seconds) == (f"{directory.name} · Temper", 10.0)
            clock.now += 100
    [message] = caplog.messages
    assert message.startswith(f"dashboard.run_not_shown(path={directory}, error=[Errno 21]")


def test_only_a_few_runs_are_held_open(looks_at: Callable[..., Looks], tmp_path: Path) -> None:
    for number in range(11):
        add(write_run(tmp_path, f"run-{number:02}"), step_record(1))
    clock = Clock()
    looks = looks_at(tmp_path, clock=clock)
    for number in range(11):
        looks.look(f"run-{number:02}")
    clock.now = 100
    looks.look("run-03")
    looks.look("run-00")
    names = [path.name for path in looks._open]
    assert names == [f"run-{number:02}" for number in (5, 6, 7, 8, 9, 10, 3, 0)]


def test_many_threads_share_one_look(looks_at: Callable[..., Looks], tmp_path: Path) -> None:
    add(write_run(tmp_path), *falling(1, 30))
    looks, seen = looks_at(tmp_path, clock=Clock()), []
    threads = [threading.Thread(target=lambda: seen.append(looks.look())) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 10
    assert len({id(look) for look in seen}) == 1
