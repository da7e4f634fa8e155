"""A small quickstart as a command, and the page that judges several."""

from pathlib import Path

import pytest

from benchmarks.quickstart_seeds import Quickstart, has_missed, page, train


def test_a_command_that_fails_is_no_figure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="seed 3 ended with 2"):
        train(3, tmp_path, ["--no-such-flag"])


def test_the_goal_is_for_each_seed_and_for_the_longest() -> None:
    good, poor = Quickstart(0, 1.0, 0.01, 60.0), Quickstart(1, 0.92, 0.05, 61.0)
    slow = Quickstart(2, 1.0, 0.01, 91.0)
    assert not has_missed([good, good])
    assert has_missed([good, poor])
    assert has_missed([good, slow])
    assert "96.0% of the held-out questions" in page([good, poor])
    assert "the longest took 61 s" in page([good, poor])
