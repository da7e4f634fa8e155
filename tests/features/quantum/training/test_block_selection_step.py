"""Block selection in a real training: what is frozen, for how long, and what a resume repeats."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.config.sections.model_config import LoraConfig
from infrastructure.features.quantum.config import QuantumConfig
from infrastructure.features.quantum.problems.block_selection import sampled_fisher
from infrastructure.features.quantum.training import block_selection_step
from infrastructure.features.quantum.training.block_selection_step import (
    BlockSelectionStep,
    check_blocks,
    num_chosen_blocks,
)
from infrastructure.features.quantum.training.block_statistics import BlockStatistics
from infrastructure.features.quantum.training.decisions import Decisions
from infrastructure.features.quantum.training.freeze_blocks import block_name
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from tests.features.quantum.training.quantum_runs import (
    StopAt,
    alternate_blocks,
    quantum_trainer,
    records,
    same_weights,
    without_times,
)
from tests.slow import slow_but

LORA = LoraConfig(r=4, alpha=8, dropout=0.0)


def step_of(num_layers: int, num_blocks: int | None = None, **parts: Any) -> BlockSelectionStep:
    """A step of a model with numbered layers, of which only sizes are needed."""
    nothing: Any = None
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(num_layers))
    given = dict.fromkeys(("adapter", "precision", "optimizer"), nothing) | parts
    config = QuantumConfig(problem="block_selection", num_blocks=num_blocks)
    return BlockSelectionStep(
        config=config, model=model, examples=range(5), micro_batch_size=2, seed=7, number=3, **given
    )


@pytest.mark.parametrize(
    ("num_layers", "num_blocks", "chosen", "refusal"),
    [
        (5, None, 3, None),
        (4, None, 2, None),
        (2, None, 1, None),
        (5, 4, 4, None),
        (5, 5, 5, "num_blocks_leaves_no_choice(num_blocks=5, total=5"),
        (5, 9, 5, "num_blocks_leaves_no_choice(num_blocks=9, total=5"),
        (1, None, 1, "too_few_blocks_to_choose(count=1"),
        (1, 1, 1, "too_few_blocks_to_choose(count=1"),
    ],
)
def test_half_of_the_blocks_train_or_as_many_as_were_set(
    num_layers: int, num_blocks: int | None, chosen: int, refusal: str | None
) -> None:
    step = step_of(num_layers, num_blocks)
    assert num_chosen_blocks(step.config, num_layers) == chosen
    with pytest.raises(ValueError, match="quantum") if refusal else nullcontext() as refused:
        check_blocks(step.config, step.model)
    assert not refusal or f"quantum.{refusal}" in str(refused.value)  # type: ignore[union-attr]
    check_blocks(QuantumConfig(), torch.nn.Module())  # of data selection it does not matter


def test_the_step_measures_its_micro_batches_and_records_its_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[Any] = []

    def measure(*given: Any, **named: Any) -> BlockStatistics:
        measured.append((given[2], named["seed"]))
        rows = np.arange(8.0).reshape(2, 4)
        return BlockStatistics([f"block {i}" for i in range(4)], -rows[0], rows[1], rows, 10)

    monkeypatch.setattr(block_selection_step, "block_statistics", measure)
    step = step_of(4, 3)
    problem = step.problem()
    assert [list(map(list, batches)) for batches, _ in measured] == [[[0, 1], [2, 3], [4]]]
    assert [seed for _, seed in measured] == [7 + 3]
    assert (problem.seed, problem.number, problem.num_chosen) == (7, 3, 3)
    assert problem.gradient_norms.tolist() == [4, 5, 6, 7]
    fisher = sampled_fisher(np.arange(8.0).reshape(2, 4), 10)
    assert problem.pairs.tolist() == fisher.tolist()
    assert problem.decrease.tolist() == [0, -1, -2, -3]
    decisions = Decisions()
    assert step.apply(problem, ["block 3", "block 0"], decisions) == {
        "chosen": "blocks 0, 3 of 4 train",
        "blocks": ["block 0", "block 3"],
    }
    assert decisions.blocks == {"block 0", "block 3"}
    assert step.cost_seconds(1.5) == 2 * 1.5 + 0.1


class Moved(Observer):
    """Which blocks each step has changed, and for which the optimizer remembers anything."""

    def __init__(self) -> None:
        self.moved: list[set[str]] = []
        self.remembered: list[set[str]] = []
        self._before: dict[str, torch.Tensor] = {}

    def step_start(self, state: TrainingState) -> None:
        self._before = {n: p.detach().clone() for n, p in state.model.named_parameters()}

    def step_end(self, state: TrainingState) -> None:
        moved, remembered = set(), set()
        for name, parameter in state.model.named_parameters():
            block = block_name(name) or "rest"
            if not torch.equal(parameter, self._before[name]):
                moved.add(block)
            if state.optimizer is not None and parameter in state.optimizer.state:
                remembered.add(block)
        self.moved.append(moved)
        self.remembered.append(remembered)


KINDS: list[dict[str, Any]] = [
    *({}, {"lora": LORA}, {"gradient_checkpointing": True}, {"optimizer": "sgd"})
]


@pytest.mark.parametrize("kind", slow_but([{}, {"lora": LORA}], KINDS), ids=str)
def test_only_the_chosen_blocks_move_until_the_next_choice(
    saved_llama: Path, tmp_path: Path, kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    alternate_blocks(monkeypatch)
    moved = Moved()
    quantum = {"problem": "block_selection", "num_blocks": 1}
    settings = {"optimization_frequency": 3, "max_steps": 8, **kind}
    trainer = quantum_trainer(saved_llama, tmp_path, quantum=quantum, hooks=(moved,), **settings)
    trainer.train()
    found = records(trainer)
    assert [record["step"] for record in found] == [0, 3, 6]
    first, second, third = (set(record["blocks"]) for record in found)
    assert first == third
    assert first | second == {"block 0", "block 1"}
    rest = set() if kind.get("lora") else {"rest"}
    expected = [first] * 3 + [second] * 3 + [third] * 2
    assert moved.moved == [blocks | rest for blocks in expected]
    if kind.get("optimizer") != "sgd":
        assert moved.remembered == [blocks | rest for blocks in expected]


@pytest.mark.parametrize("stop", slow_but([2], [2, 6]))
def test_a_training_that_goes_on_freezes_the_same(
    stop: int, saved_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop where the next choice is due is in the next test, too."""
    alternate_blocks(monkeypatch)
    quantum = {"problem": "block_selection", "num_blocks": 1}
    settings = {"optimization_frequency": 3, "max_steps": 8, "checkpoint_frequency": 1}
    whole = quantum_trainer(saved_llama, tmp_path, quantum=quantum, **settings)
    whole.train()
    folder = tmp_path / "checkpoints"
    first = quantum_trainer(
        saved_llama,
        tmp_path,
        quantum=quantum,
        checkpoints=folder,
        hooks=(StopAt(stop),),
        **settings,
    )
    first.train()
    assert first.checkpoints is not None
    again = quantum_trainer(saved_llama, tmp_path, quantum=quantum, checkpoints=folder, **settings)
    again.restore(first.checkpoints.newest())
    again.train()
    assert same_weights(whole, again)
    assert without_times(records(again)) == without_times(records(whole))


class Breaks(Observer):
    """Raises when the gradients of a step are there, and so is the answer of its quantum step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_backward(self, state: TrainingState) -> None:
        if state.step == self.step:
            raise RuntimeError("planted")


def test_a_step_that_breaks_after_its_answer_leaves_no_trace(
    saved_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the optimizer knows of the blocks so far is in the checkpoint of the step before."""
    alternate_blocks(monkeypatch)
    quantum = {"problem": "block_selection", "num_blocks": 1}
    settings = {"optimization_frequency": 2, "max_steps": 4}
    whole = quantum_trainer(saved_llama, tmp_path, quantum=quantum, **settings)
    whole.train()
    folder = tmp_path / "checkpoints"
    broken = quantum_trainer(
        saved_llama, tmp_path, quantum=quantum, checkpoints=folder, hooks=(Breaks(2),), **settings
    )
    with pytest.raises(RuntimeError, match="planted"):
        broken.train()
    again = quantum_trainer(saved_llama, tmp_path, quantum=quantum, **settings)
    assert broken.checkpoints is not None
    again.restore(broken.checkpoints.newest())
    again.train()
    assert same_weights(whole, again)
    assert without_times(records(again)) == without_times(records(whole))


def test_a_lack_of_memory_costs_the_choice_and_nothing_else(
    saved_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory: planted")

    monkeypatch.setattr(block_selection_step, "block_statistics", no_room)
    quantum = {"problem": "block_selection", "num_blocks": 1}
    trainer = quantum_trainer(saved_llama, tmp_path, quantum=quantum, max_steps=2)
    trainer.train()
    assert (trainer.state.step, trainer.state.micro_batch_size) == (2, 4)
    (record,) = records(trainer)
    assert record["outcome"] == "failed"
    assert "out of memory" in record["why"]


def test_too_many_blocks_are_refused(saved_llama: Path, tmp_path: Path) -> None:
    quantum = {"problem": "block_selection", "num_blocks": 2}
    trainer = quantum_trainer(saved_llama, tmp_path, quantum=quantum, max_steps=1)
    with pytest.raises(
        ValueError, match=r"quantum\.num_blocks_leaves_no_choice.*num_blocks=2.*total=2"
    ):
        trainer.train()


def test_a_choice_that_costs_too_much_is_not_made(saved_llama: Path, tmp_path: Path) -> None:
    """Two passes more in every fourth step are half as much again."""
    quantum = {"problem": "block_selection", "num_blocks": 1, "max_overhead_percent": 5}
    moved = Moved()
    trainer = quantum_trainer(
        saved_llama,
        tmp_path,
        quantum=quantum,
        optimization_frequency=4,
        max_steps=5,
        hooks=(moved,),
    )
    trainer.train()
    assert [record["outcome"] for record in records(trainer)] == ["skipped", "skipped"]
    assert "quantum.step_over_time_budget" in records(trainer)[0]["why"]
    assert moved.moved == [{"rest", "block 0", "block 1"}] * 5
