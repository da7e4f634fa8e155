"""Block selection in a real training: what is frozen, for how long, and what a resume repeats."""

from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.config.sections.model_config import LoraConfig
from infrastructure.features.quantum.training import block_selection_step
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

LORA = LoraConfig(r=4, alpha=8, dropout=0.0)


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


@pytest.mark.parametrize(
    "kind", [{}, {"lora": LORA}, {"gradient_checkpointing": True}, {"optimizer": "sgd"}], ids=str
)
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


def test_a_training_that_goes_on_freezes_the_same(
    saved_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alternate_blocks(monkeypatch)
    quantum = {"problem": "block_selection", "num_blocks": 1}
    settings = {"optimization_frequency": 3, "max_steps": 8, "checkpoint_frequency": 1}
    whole = quantum_trainer(saved_llama, tmp_path, quantum=quantum, **settings)
    whole.train()
    for stop in (2, 6):
        folder = tmp_path / f"checkpoints{stop}"
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
        again = quantum_trainer(
            saved_llama, tmp_path, quantum=quantum, checkpoints=folder, **settings
        )
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
    assert trainer.state is not None
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
