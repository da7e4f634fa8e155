"""Systems that take turns: one step each, in order, timed without the others, in own processes."""

import os
from collections.abc import Iterator
from functools import partial
from multiprocessing.forkserver import _forkserver  # type: ignore[attr-defined]
from pathlib import Path

import pytest

from benchmarks.turns import Clock, interval, take_turns

NUM_STEPS = 3


@pytest.fixture(autouse=True)
def server_is_a_fork(spawned_by_fork: None) -> Iterator[None]:
    """Which has imported what the systems of these tests need."""
    yield
    _forkserver._stop()


def train(name: str, trace: Path, clock: Clock) -> int:
    """Write down what is done; the number of its process."""
    with trace.open("a", buffering=1) as file:
        for step in range(NUM_STEPS):
            file.write(f"{name}{step}\n")
            clock.num_tokens += 10
            clock.mark()
        file.write(f"{name} ends\n")
    return os.getpid()


def train_slowly(trace: Path, clock: Clock) -> None:
    with trace.open("a", buffering=1) as file:
        for _ in range(NUM_STEPS):
            file.write("slow\n" * 5)
            clock.mark()


def num_lines(trace: Path) -> float:
    """A clock, for all: a second is a line, whoever has written it."""
    return float(len(trace.read_text().splitlines())) if trace.exists() else 0.0


def fail(clock: Clock) -> None:
    clock.mark()
    raise KeyError("broken")


def die(clock: Clock) -> None:
    clock.mark()
    os._exit(1)


def test_each_does_one_step_in_its_turn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """In a process of its own, and what it waits for the others does not count."""
    trace = tmp_path / "trace"
    systems = {name: partial(train, name, trace) for name in "ab"}
    systems["slow"] = partial(train_slowly, trace)
    turns = take_turns(systems, NUM_STEPS, "test", partial(num_lines, trace))
    lines = [line for line in trace.read_text().splitlines() if line != "slow"]
    assert lines == ["a0", "b0", "a1", "b1", "a2", "b2", "a ends", "b ends"]
    for system in (turns["a"], turns["b"]):
        assert system.seconds == [1.0] * NUM_STEPS
        assert system.speeds == [10.0] * NUM_STEPS
        assert system.peak_bytes > 1 << 20
    assert turns["slow"].seconds == [5.0] * NUM_STEPS
    assert len({os.getpid(), turns["a"].result, turns["b"].result}) == 3
    assert capsys.readouterr().err.count("tokens/s") == 3 * NUM_STEPS


def test_a_failure_is_raised_when_the_others_are_done(tmp_path: Path) -> None:
    good = partial(train, "good", tmp_path / "trace")
    with pytest.raises(RuntimeError, match=r"failing failed:(?s:.*)KeyError: 'broken'"):
        take_turns({"failing": fail, "good": good}, NUM_STEPS, "test")
    assert (tmp_path / "trace").read_text().endswith("good ends\n")


def test_a_killed_process_is_noticed() -> None:
    with pytest.raises(EOFError):
        take_turns({"dying": die}, NUM_STEPS, "test")


def test_an_interval_holds_the_middle_of_what_was_seen() -> None:
    low, high = interval([0.9, 1.0, 1.0, 1.0, 1.1])
    assert 0.9 <= low < 1.0 < high <= 1.1
    assert interval([1.25] * 9) == (1.25, 1.25)
