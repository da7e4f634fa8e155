"""A model that is spread over ranks trains as one that is not, and goes on as one, and back."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.training.checkpoints.checkpoint_manager import (
    CheckpointManager,
    load_checkpoint,
)
from infrastructure.training.checkpoints.chunked_version import KEY
from infrastructure.training.checkpoints.snapshot import restore_snapshot
from infrastructure.training.distributed.group import ALONE
from infrastructure.training.distributed.shard import blocks_of
from tests.faults.pickle_scan import files_with_pickles
from tests.forks import forked_python
from tests.slow import slow
from tests.training.distributed import spread
from tests.training.distributed.spread import CASES, NUM_STEPS, SAVED_AFTER

ROOT = Path(__file__).resolve().parents[3]


def run_ranks(folder: Path, size: int, *arguments: str) -> None:
    command = [sys.executable, "-m", "tests.training.distributed.spread", str(folder), *arguments]
    ranks = [
        forked_python(
            command, cwd=ROOT, env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size)}
        )
        for rank in range(size)
    ]
    assert [rank.wait() for rank in ranks] == [0] * size


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """All cases alone, then on two ranks."""
    folder = tmp_path_factory.mktemp("spread")
    spread.make_inputs(folder)
    alone = {case.name: spread.train_alone(folder, case) for case in CASES}
    run_ranks(folder, 2)
    return folder, alone


def assert_alike(numbers: list[list[float]], expected: list[list[float]]) -> None:
    assert len(numbers) == len(expected)
    torch.testing.assert_close(torch.tensor(numbers), torch.tensor(expected), rtol=1e-5, atol=1e-5)


def test_two_ranks_train_as_one_process(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, alone = trained
    together = json.loads((folder / "losses 0 2.json").read_text())
    for case in CASES:
        assert_alike(together[case.name]["losses"], alone[case.name])


def test_two_ranks_go_on_from_one_process(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, alone = trained
    together = json.loads((folder / "losses 0 2.json").read_text())
    for case in CASES:
        assert_alike(together[case.name]["gone on"], alone[case.name][SAVED_AFTER:])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_process_goes_on_from_two_ranks(
    trained: tuple[Path, dict[str, Any]], case: spread.Case
) -> None:
    folder, alone = trained
    root = spread.store_of_case(folder, case, 2)
    manager = CheckpointManager(root)
    newest = manager.newest()
    assert (KEY in manager.store.read(newest.stem).values) == (case.saving == "shards")
    trainer = spread.trainer_of(folder, case)
    loop, state = trainer.prepare(), trainer.state
    assert state is not None
    restore_snapshot(load_checkpoint(newest), state, loop.optimizer_step)
    numbers = spread.steps(trainer, ALONE, SAVED_AFTER, NUM_STEPS)
    assert_alike(numbers, alone[case.name][SAVED_AFTER:])
    assert files_with_pickles(root) == []


@slow
def test_four_ranks_go_on_from_two(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, alone = trained
    run_ranks(folder, 4, "2")
    together = json.loads((folder / "losses 2 4.json").read_text())
    for case in CASES:
        assert_alike(together[case.name], alone[case.name][SAVED_AFTER:])


def test_the_blocks_of_a_model_are_its_outermost_lists() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = torch.nn.ModuleList([torch.nn.Linear(2, 2)])

    model = torch.nn.Sequential(torch.nn.Embedding(3, 2), torch.nn.ModuleList([Block(), Block()]))
    assert blocks_of(model) == list(model[1])
