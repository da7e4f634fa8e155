"""The overhead's arithmetic, and its blocks in a real toy training."""

import pytest

from benchmarks import monitor_overhead
from benchmarks.monitor_overhead import Blocks, growth
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from tests.training.toy_training import Training


class Counting(Observer):
    """Counts what it is given."""

    def __init__(self) -> None:
        self.starts, self.steps, self.ends = 0, 0, 0

    def train_start(self, state: TrainingState) -> None:
        self.starts += 1

    def step_end(self, state: TrainingState) -> None:
        self.steps += 1

    def train_end(self, state: TrainingState) -> None:
        self.ends += 1


def test_blocks_alternate_and_the_watching_hooks_see_their_own_only() -> None:
    watching = Counting()
    blocks = Blocks([watching], num_blocks=4, block_seconds=1e-9)
    training = Training(hooks=[blocks], num_epochs=20).run()
    assert [block.is_on for block in blocks.blocks] == [False, True, True, False]
    assert training.state.stop_message == "all blocks are measured"
    assert (watching.starts, watching.steps, watching.ends) == (1, 2, 1)
    assert [block.hooks > 0 for block in blocks.blocks] == [False, True, True, False]
    assert all(block.clock > block.hooks for block in blocks.blocks)


def test_a_monitor_s_growth_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor_overhead, "HISTORY", 100)
    found = growth(2000)
    assert found["samples"] == 2000
    assert found["grown_bytes"] < 4_000_000
    assert 0 < found["disk_bytes"] < 40_000_000
