"""Everything on beside everything off: whose turn it is, and the page."""

import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.everything_on import Training, train_pair

# Each of its steps waits for a line of a process that it has started.
COUNTS = """
import subprocess, sys
helper = subprocess.Popen(
    [sys.executable, "-u", "-c", '''
import sys, time
while True:
    print()
    print(end=".", file=sys.stderr)
    time.sleep(0.01)
'''],
    stdout=subprocess.PIPE,
    stderr=open(sys.argv[2], "w") if sys.argv[1] == "dots" else subprocess.DEVNULL,
)
for step in range(1000):
    helper.stdout.readline()
    print(step, step, flush=True)
"""


def test_a_training_stands_still_with_what_it_has_started_until_its_turn(tmp_path: Path) -> None:
    dots = tmp_path / "dots"
    training = Training([sys.executable, "-c", COUNTS, "dots", str(dots)])
    try:
        assert training.go(0).num_tokens == 0
        assert training.go(5).num_tokens == 5
        num_dots = dots.stat().st_size
        time.sleep(0.5)  # fifty lines, if it were not stopped
        assert dots.stat().st_size == num_dots > 0
        assert training.go(10).num_tokens == 5
        assert {each.status() for each in (training._tree, *training._started())} == {"stopped"}
    finally:
        training.end()


def test_an_end_before_its_time_is_an_error() -> None:
    training = Training([sys.executable, "-c", "print(0, 0)"])
    training.go(0)
    with pytest.raises(RuntimeError, match="ended before step 7"):
        training.go(7)
    training.end()


def test_the_two_of_a_pair_take_turns_and_end() -> None:
    before = set(psutil.Process().children())
    turns = train_pair([sys.executable, "-c", COUNTS], 6)
    assert {kind: [turn.num_tokens for turn in these] for kind, these in turns.items()} == {
        "off": [2, 2, 2],
        "on": [2, 2, 2],
    }
    assert set(psutil.Process().children()) <= before
