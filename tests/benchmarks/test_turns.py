"""Systems that take turns: one step each, in order, timed without the others."""

from collections.abc import Callable

import pytest

from benchmarks.turns import Clock, interval, take_turns

NUM_STEPS = 3


def system(name: str, trace: list[str], num_steps: int = NUM_STEPS) -> Callable[[Clock], None]:
    def train(clock: Clock) -> None:
        for step in range(num_steps):
            trace.append(f"{name}{step}")
            clock.num_tokens += 10
            clock.mark()
        trace.append(f"{name} ends")

    return train


def test_each_does_one_step_in_its_turn(capsys: pytest.CaptureFixture[str]) -> None:
    trace: list[str] = []
    clocks = take_turns({"a": system("a", trace), "b": system("b", trace)}, NUM_STEPS, "test")
    assert trace == ["a0", "b0", "a1", "b1", "a2", "b2", "a ends", "b ends"]
    for clock in clocks.values():
        assert len(clock.speeds) == len(clock.seconds) == NUM_STEPS
        assert clock.speeds == [pytest.approx(10 / seconds) for seconds in clock.seconds]
    assert capsys.readouterr().err.count("tokens/s") == 2 * NUM_STEPS


def test_waiting_for_the_others_takes_no_time() -> None:
    def slow(clock: Clock) -> None:
        for _ in range(NUM_STEPS):
            sum(range(1_000_000))
            clock.mark()

    clocks = take_turns({"fast": system("fast", []), "slow": slow}, NUM_STEPS, "test")
    assert sum(clocks["fast"].seconds) < sum(clocks["slow"].seconds)


def test_a_failure_is_raised_when_the_others_are_done() -> None:
    trace: list[str] = []

    def failing(clock: Clock) -> None:
        clock.mark()
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        take_turns({"failing": failing, "good": system("good", trace)}, NUM_STEPS, "test")
    assert trace[-1] == "good ends"


def test_an_interval_holds_the_middle_of_what_was_seen() -> None:
    low, high = interval([0.9, 1.0, 1.0, 1.0, 1.1])
    assert 0.9 <= low < 1.0 < high <= 1.1
    assert interval([1.25] * 9) == (1.25, 1.25)
