"""The storm that stands beside G1: that it kills, counts, and comes to an end."""

from pathlib import Path

from tests.faults.judge import run_in_fork
from tests.faults.kill_storm_transformers import LAST_FILE, newest_folder, whole_checkpoints
from tests.slow import slow


@slow
def test_the_same_kills_on_transformers_are_counted(tmp_path: Path) -> None:
    module = "tests.faults.kill_storm_transformers"
    found = run_in_fork(module, str(tmp_path / "storm"), "--kills", "8")
    assert found["kills"] >= 8
    assert found["finished"] >= 1


def test_a_folder_counts_as_whole_when_its_last_file_is_there(tmp_path: Path) -> None:
    for step in (2, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
    (tmp_path / "checkpoint-2" / LAST_FILE).write_text("{}")
    assert list(whole_checkpoints(tmp_path)) == [2]
    assert newest_folder(tmp_path) == tmp_path / "checkpoint-10"
    assert newest_folder(tmp_path / "checkpoint-2") is None
