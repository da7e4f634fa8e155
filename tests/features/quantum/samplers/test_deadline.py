"""The time until an answer must be there, on a clock of the test's own."""

import math

import pytest

from infrastructure.features.quantum.samplers.deadline import Deadline


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_time_runs_from_the_beginning() -> None:
    clock = Clock()
    deadline = Deadline(10.0, clock)
    assert (deadline.elapsed_seconds, deadline.seconds_left) == (0.0, 10.0)
    clock.now += 4.0
    assert (deadline.elapsed_seconds, deadline.seconds_left) == (4.0, 6.0)
    clock.now += 5.5
    assert not deadline.is_over
    clock.now += 0.5
    assert deadline.is_over
    clock.now += 1.0
    assert deadline.seconds_left == -1.0


def test_no_time_at_all_is_over_at_once_and_no_limit_never() -> None:
    assert Deadline(0.0, Clock()).is_over
    clock = Clock()
    endless = Deadline(None, clock)
    clock.now += 1e9
    assert endless.seconds_left == math.inf
    assert not endless.is_over


@pytest.mark.parametrize("seconds", [-0.5, -1, math.nan])
def test_what_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"quantum\.negative_time_limit"):
        Deadline(seconds)
