"""Looks are made once for all viewers, and cost next to nothing."""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infrastructure.features.dashboard.snapshots import MAX_OPEN_RUNS, Looks
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
    clock.now = first.next_seconds
    second = looks.look()
    assert "step 20" in second.sections["progress"]
    assert second.version != first.version


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
    assert looks.look().next_seconds == pytest.approx(10, abs=1)


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
        with pytest.raises(ValueError, match=r"dashboard\.unknown_run"):
            looks.look(name)


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
            assert "dashboard.run_not_shown" in looks.look().sections["notices"]
            clock.now += 100
    assert len(caplog.records) == 1


def test_only_a_few_runs_are_held_open(looks_at: Callable[..., Looks], tmp_path: Path) -> None:
    for number in range(MAX_OPEN_RUNS + 3):
        add(write_run(tmp_path, f"run-{number:02}"), step_record(1))
    looks = looks_at(tmp_path)
    for number in range(MAX_OPEN_RUNS + 3):
        looks.look(f"run-{number:02}")
    assert len(looks._open) == MAX_OPEN_RUNS


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
