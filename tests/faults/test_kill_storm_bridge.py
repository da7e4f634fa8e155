"""The storm on a Trainer with the callback, in its short form; `make prove-durability` has the long
one, and its mutants, for which a few kills at random are too few."""

from pathlib import Path

from tests.faults.judge import run_in_fork

MODULE = "tests.faults.kill_storm_bridge"


def test_nothing_is_lost_and_nothing_differs(tmp_path: Path) -> None:
    outcome = run_in_fork(MODULE, str(tmp_path), "--kills", "3")
    assert outcome["kills"] >= 3
    assert outcome["finished"] >= 1
    assert outcome["lost"] == outcome["damaged"] == outcome["differing"] == outcome["failed"] == 0
