"""When a checkpoint is due by time, by request, and before a deadline."""

import math
from pathlib import Path

import pytest

from infrastructure.training.checkpoints.save_schedule import (
    LONGEST_SECONDS,
    MEAN_SECONDS_BETWEEN_FAILURES,
    SHORTEST_SECONDS,
    SaveSchedule,
)
from infrastructure.training.core.state import StopReason

NUM_REMEMBERED = 50  # saves, and steps


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def steps_saved(schedule: SaveSchedule, clock: Clock, num_steps: int, seconds: float) -> list[int]:
    saved = []
    schedule.start(0)
    for step in range(1, num_steps + 1):
        clock.now += seconds
        if schedule.kind_due(step):
            schedule.note_save(step, 0.0)
            saved.append(step)
    return saved


def test_by_time(clock: Clock) -> None:
    assert steps_saved(SaveSchedule(30, clock=clock), clock, 20, 8.0) == [4, 8, 12, 16, 20]


def test_never_by_time(clock: Clock) -> None:
    assert steps_saved(SaveSchedule(None, clock=clock), clock, 20, 9999.0) == []


def test_a_step_that_is_saved_is_not_saved_again(clock: Clock) -> None:
    schedule = SaveSchedule(30, clock=clock)
    clock.now += 30
    assert schedule.kind_due(0) == "scheduled"
    schedule.start(5)
    clock.now += 100
    assert schedule.kind_due(5) is None
    assert schedule.kind_due(6) == "scheduled"


@pytest.mark.parametrize("cost_seconds", [0.05, 1.0, 20.0])
def test_auto_is_youngs_interval(clock: Clock, cost_seconds: float) -> None:
    schedule = SaveSchedule("auto", clock=clock)
    schedule.note_save(1, cost_seconds)
    expected = math.sqrt(2 * cost_seconds * MEAN_SECONDS_BETWEEN_FAILURES)
    assert schedule.current_interval_seconds == pytest.approx(expected)


def test_auto_has_bounds(clock: Clock) -> None:
    schedule = SaveSchedule("auto", clock=clock)
    assert schedule.current_interval_seconds == SHORTEST_SECONDS  # nothing is known yet
    schedule.note_save(1, 1e-9)
    assert schedule.current_interval_seconds == SHORTEST_SECONDS
    schedule.note_save(2, 1e9)
    assert schedule.current_interval_seconds == LONGEST_SECONDS


def test_a_touched_file_requests_a_save(clock: Clock, tmp_path: Path) -> None:
    request = tmp_path / "save_now"
    schedule = SaveSchedule(None, request=request, clock=clock)
    assert schedule.kind_due(1) is None
    request.touch()
    assert schedule.kind_due(2) == "manual"
    schedule.note_save(2, 0.1)
    assert not request.exists()
    assert schedule.kind_due(3) is None


def test_the_deadline_leaves_room_for_a_step_and_a_save(clock: Clock) -> None:
    schedule = SaveSchedule(None, deadline_seconds=1000, clock=clock)
    schedule.start(0)
    schedule.note_save(0, 15.0)
    step = 0
    while not schedule.deadline_is_near:
        step += 1
        clock.now += 40.0
        schedule.kind_due(step)
    left_seconds = 2000.0 - clock.now
    assert 40.0 + 15.0 <= left_seconds < 1000 * 0.02 + 2 * (40 + 15) + 40


def test_what_comes_after_the_last_save_has_room_too(clock: Clock) -> None:
    schedule = SaveSchedule(None, deadline_seconds=1000, clock=clock)
    schedule.reserve = lambda: 700.0
    assert not schedule.deadline_is_near
    clock.now += 290
    assert schedule.deadline_is_near


def test_without_a_deadline_none_is_near(clock: Clock) -> None:
    schedule = SaveSchedule(None, clock=clock)
    clock.now += 1e9
    assert not schedule.deadline_is_near


def test_the_numbers_that_are_documented(clock: Clock) -> None:
    """A cost of a second, of a millisecond and of an hour: once in 147 s, 10 s and half an hour."""
    expected = {1.0: 146.97, 0.001: 10.0, 3600.0: 1800.0}
    for cost_seconds, interval_seconds in expected.items():
        schedule = SaveSchedule("auto", clock=clock)
        schedule.note_save(1, cost_seconds)
        assert schedule.current_interval_seconds == pytest.approx(interval_seconds, rel=1e-3)


def test_the_time_that_is_left(clock: Clock) -> None:
    schedule = SaveSchedule(None, deadline_seconds=1000, clock=clock)
    clock.now += 300
    assert schedule.seconds_left == 700
    assert SaveSchedule(None, clock=clock).seconds_left == math.inf


def test_without_costs_a_deadline_is_near_at_its_share(clock: Clock) -> None:
    """2% of the time, at most half a minute, and nothing is reserved."""
    for deadline_seconds, margin in ((1000, 20), (100_000, 30)):
        schedule = SaveSchedule(None, deadline_seconds=deadline_seconds, clock=clock)
        clock.now += deadline_seconds - margin - 0.5
        assert not schedule.deadline_is_near
        clock.now += 0.5
        assert schedule.deadline_is_near


def test_saving_counts_into_the_time_before_the_next(clock: Clock) -> None:
    schedule = SaveSchedule(30, clock=clock)
    schedule.start(0)
    clock.now += 20
    schedule.note_save(1, 5.0)
    clock.now += 29
    assert schedule.kind_due(2) is None
    clock.now += 1
    assert schedule.kind_due(3) == "scheduled"


def test_the_dearest_of_the_last_saves_counts_and_older_ones_are_forgotten(clock: Clock) -> None:
    schedule = SaveSchedule("auto", clock=clock)
    for cost_seconds in (20.0, *[0.05] * (NUM_REMEMBERED - 1)):
        schedule.note_save(1, cost_seconds)
    dear = schedule.current_interval_seconds
    schedule.note_save(1, 0.05)
    assert dear == pytest.approx(math.sqrt(400) * schedule.current_interval_seconds)


def test_before_a_deadline_two_of_the_longest_steps_and_dearest_saves_have_room(
    clock: Clock,
) -> None:
    schedule = SaveSchedule(None, deadline_seconds=1000, clock=clock)
    schedule.start(0)
    for gap, cost in ((1.0, 15.0), (40.0, 2.0), (3.0, 4.0)):
        clock.now += gap
        schedule.kind_due(1)
        schedule.note_save(1, cost)
    room = 20 + 2 * (40 + 15)
    clock.now += schedule.seconds_left - room - 0.5
    assert not schedule.deadline_is_near
    clock.now += 0.5
    assert schedule.deadline_is_near


def test_a_step_that_was_long_once_is_forgotten(clock: Clock) -> None:
    schedule = SaveSchedule(None, deadline_seconds=1000, clock=clock)
    schedule.start(0)
    for gap in (300.0, *[0.0] * NUM_REMEMBERED):
        clock.now += gap
        schedule.kind_due(1)
    clock.now += 400
    assert not schedule.deadline_is_near


def test_what_took_time_before_a_training_goes_on_is_no_step(clock: Clock) -> None:
    schedule = SaveSchedule(200, deadline_seconds=1000, clock=clock)
    clock.now += 300
    schedule.start(4)
    assert schedule.kind_due(5) is None
    clock.now += 600
    assert not schedule.deadline_is_near


def test_a_save_needs_no_request(clock: Clock, tmp_path: Path) -> None:
    schedule = SaveSchedule(30, request=tmp_path / "save_now", clock=clock)
    schedule.note_save(1, 0.1)
    clock.now += 30
    assert schedule.kind_due(2) == "scheduled"


@pytest.mark.parametrize(
    ("reason", "left_seconds", "expected"),
    [
        (StopReason.DEADLINE, 300, 300),
        (StopReason.DEADLINE, 10, 25),
        (StopReason.SIGNAL, 300, 25),
        (StopReason.COMMAND, 300, 25),
        (None, 300, 25),
    ],
)
def test_before_a_deadline_the_copies_have_the_time_that_is_left(
    clock: Clock, reason: StopReason | None, left_seconds: float, expected: float
) -> None:
    schedule = SaveSchedule(None, deadline_seconds=1000, clock=clock)
    clock.now += 1000 - left_seconds
    assert schedule.seconds_to_copy(reason, 25) == expected


def test_without_a_deadline_copies_have_the_patience_of_a_signal(clock: Clock) -> None:
    assert SaveSchedule(None, clock=clock).seconds_to_copy(StopReason.SIGNAL, 25) == 25
