"""The example is short, keeps the contract, and keeps backups on both disks."""

import json
import os
import sys
from pathlib import Path

from infrastructure.backup.backends.base import Place
from infrastructure.backup.format.store import Store
from infrastructure.features.conformance.storage_backend import StorageBackendSuite
from tests.examples.scripts import MOST_LINES, ROOT, example
from tests.forks import outcome_of_forked


class TestTwoDisks(StorageBackendSuite):
    def open(self, folder: Path) -> Place:
        made: Place = example("own_storage").TwoDisks(f"x://{folder}/one,{folder}/other")
        return made


def test_it_is_short() -> None:
    assert len((ROOT / "examples/own_storage.py").read_text().splitlines()) <= MOST_LINES


def test_a_training_is_copied_to_both(tmp_path: Path) -> None:
    """As the example's text says, with its folder as the current one."""
    from tests.deployment.runs import small_settings  # PyTorch; the suite's process needs none

    settings = small_settings(tmp_path, max_steps=3)
    settings["backup"] = {"finish_seconds": 120}
    (tmp_path / "temper.yaml").write_text(json.dumps(settings))
    place = f"own_storage:TwoDisks://{tmp_path}/one,{tmp_path}/other"
    given = ["train", "--config", str(tmp_path / "temper.yaml"), "--backup-place", place]
    done = outcome_of_forked(
        [sys.executable, "-P", "-m", "infrastructure", *given],
        cwd=ROOT / "examples",
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    newest = set()
    for disk in ("one", "other"):
        [versions] = (tmp_path / disk).glob("*/versions")
        name, rejected = Store(versions.parent).newest()
        assert rejected == []
        newest.add(name)
    assert len(newest) == 1
