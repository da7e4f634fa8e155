"""The example is short, runs as it stands, and keeps the contract."""

import json
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.features.conformance.strategy import TrainingStrategySuite
from infrastructure.training.strategies.base_strategy import TrainingStrategy
from tests.examples.scripts import MOST_LINES, ROOT, example
from tests.forks import outcome_of_forked


class TestHeadFirst(TrainingStrategySuite):
    settings: ClassVar[dict[str, Any]] = {"settings": {"head_epochs": 1}}

    def make(self, config: TrainingConfig) -> TrainingStrategy:
        made: TrainingStrategy = example("own_strategy").HeadFirst(config)
        return made


def test_it_is_short() -> None:
    assert len((ROOT / "examples/own_strategy.py").read_text().splitlines()) <= MOST_LINES


def test_it_runs(tmp_path: Path) -> None:
    done = outcome_of_forked(
        [sys.executable, str(ROOT / "examples/own_strategy.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    [run] = [path.parent for path in (tmp_path / "runs").glob("*/run.json")]
    log = map(json.loads, (run / "logs/training/training.jsonl").read_text().splitlines())
    assert [line["phase"] for line in log if "phase" in line] == ["head", "all"]
