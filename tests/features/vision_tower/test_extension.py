"""A model of text is given a vision tower: projector first, killed in each phase, gone on with."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.backup.format.retention import Retention
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.errors import CheckpointError
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.core.state import TrainingState
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Observer
from tests.features.key_value_memory.test_extension import Poison
from tests.slow import slow
from tests.training.model_adapters.test_multimodal_adapter import (
    exchanged,
    held_out_of,
    loss_of,
    same_answers_in_transformers,
    weights_of,
)
from tests.training.seeing_models import save_text_model, save_tower, write_colours

WITHOUT: dict[str, Any] = {
    "enabled_extensions": [],
    "multimodal": {},
    "extension_learning_rate": "auto",
}
NUM_FIRST, NUM_STEPS = 3, 15  # steps of the projector alone, and of all; 18 rows, 6 in a batch


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    folder = tmp_path_factory.mktemp("parts")
    text, tower = save_text_model(folder / "text"), save_tower(folder / "tower")
    return text, tower, write_colours(folder / "rows")


class Kill(Observer):
    """Ends the process at a step, as a machine that is switched off."""

    def __init__(self, step: int) -> None:
        self.step = step

    def step_end(self, state: TrainingState) -> None:
        if state.step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class Rates(Observer):
    """The learning rate of each step, and what trained in it."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.trained: list[str] = []
        self.before: dict[str, torch.Tensor] = {}

    def phase_start(self, state: TrainingState) -> None:
        self.take(state)

    def take(self, state: TrainingState) -> None:
        self.before = {n: p.detach().clone() for n, p in state.model.named_parameters()}

    def step_start(self, state: TrainingState) -> None:
        assert state.optimizer is not None
        self.rates.append(state.optimizer.param_groups[0]["lr"])

    def step_end(self, state: TrainingState) -> None:
        now = dict(state.model.named_parameters())
        moved = [n for n in now if not torch.equal(now[n], self.before[n])]
        self.trained.append(" ".join(sorted({part_of(name) for name in moved})))
        self.take(state)


def part_of(name: str) -> str:
    found = [part for part in ("language_model", "vision_tower", "projector") if part in name]
    return found[0] if found else "head"


def trainer_of(
    parts: tuple[Path, Path, Path], folder: Path, *, hooks: Any = (), **settings: Any
) -> EnhancedTrainer:
    text, tower, rows = parts
    values = {
        "batch_size": 6,
        "num_epochs": 4,
        "learning_rate": 1e-2,
        "warmup_steps": 2,
        "mixed_precision": False,
        "checkpoint_frequency": 2,
        "keep_checkpoints": 9,
        "enabled_extensions": ["multimodal"],
        "multimodal": {"vision_tower": str(tower)},
        "extension_learning_rate": 3e-2,
    }
    of_model = {k: settings.pop(k) for k in ("lora_config", "train_vision") if k in settings}
    return EnhancedTrainer(
        ModelConfig(name=str(text), **of_model),
        TrainingConfig(**{**values, **settings}),
        DataConfig(path=str(rows), max_length=256, validation_split=0.25, num_workers=0),
        device="cpu",
        cache_config=CacheConfig(directory=str(folder / "cache")),
        checkpoint_directory=folder / "checkpoints",
        hooks=hooks,
    )


def killed_at(step: int, parts: tuple[Path, Path, Path], folder: Path) -> EnhancedTrainer:
    """A training that was killed at a step, restored from its newest checkpoint."""
    if (child := os.fork()) == 0:
        trainer_of(parts, folder, hooks=[Kill(step)]).train()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    again = trainer_of(parts, folder)
    saved = CheckpointManager(folder / "checkpoints", Retention(9))
    again.restore(saved.checkpoints()[-1])
    assert again.state.step == step - 1
    return again


@slow
def test_the_projector_first_then_all_killed_in_each_phase(
    parts: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    rates = Rates()
    whole = trainer_of(parts, tmp_path / "whole", hooks=[rates])
    whole.train()
    assert rates.trained == ["projector"] * NUM_FIRST + ["head language_model projector"] * (
        NUM_STEPS - NUM_FIRST
    )
    first, later = rates.rates[:NUM_FIRST], rates.rates[NUM_FIRST:]
    assert max(first) == pytest.approx(3e-2)
    assert max(later) == pytest.approx(1e-2)
    assert first[0] == pytest.approx(1.5e-2)  # half of the way up
    assert later[0] == pytest.approx(1e-2 / 3)
    assert first[-1] < first[1]
    assert later[-1] < later[2]
    after = weights_of(whole)
    for step in (3, 9):
        again = killed_at(step, parts, tmp_path / f"killed at {step}")
        again.train()
        resumed = weights_of(again)
        assert all(torch.equal(resumed[name], after[name]) for name in after)
    same_answers_in_transformers(whole, tmp_path / "final")
    examples = held_out_of(whole)
    assert loss_of(whole, examples) != loss_of(whole, exchanged(examples))

    finished = (tmp_path / "final", parts[1], parts[2])
    again = trainer_of(finished, tmp_path / "more", **WITHOUT)
    assert loss_of(again, held_out_of(again)) == pytest.approx(loss_of(whole, examples), rel=1e-5)
    with pytest.raises(ValueError, match=r"vision_tower\.model_reads_images"):
        trainer_of(finished, tmp_path / "twice").prepare()


@slow  # the memory's own test is quick
def test_a_bad_loss_goes_back_into_the_phase_of_the_projector(
    parts: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    """The first step of all weights is bad, and what was saved last is of the projector alone; a
    memory is filled in both. It ends as if that batch had been passed over from the beginning."""
    settings: dict[str, Any] = {"enabled_extensions": ["multimodal", "memory"]}
    settings |= {"memory": {"slots": 4, "heads": 2, "store": 16}, "checkpoint_frequency": 4}
    settings |= {"num_epochs": 1, "log_frequency": 2}
    rates = Rates()
    poisoned = trainer_of(parts, tmp_path / "a", hooks=[Poison(NUM_FIRST), rates], **settings)
    poisoned.train()
    assert poisoned.state.recoveries[0]["action"].endswith(", step=4)")
    (skipped,) = poisoned.state.skipped
    assert skipped.step == NUM_FIRST + 1
    assert rates.trained[-2:] == ["head language_model projector"] * 2
    reference = trainer_of(parts, tmp_path / "b", hooks=[Poison(-1, skipped)], **settings)
    reference.train()
    left, right = (trainer.initialize_model().state_dict() for trainer in (poisoned, reference))
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert {name.rpartition(".")[2] for name in left} >= {"store_keys", "num_stored"}


def test_a_lora_after_the_projector(parts: tuple[Path, Path, Path], tmp_path: Path) -> None:
    rates = Rates()
    settings = {"lora_config": LoraConfig(r=2, alpha=4), "num_epochs": 1}
    trainer = trainer_of(parts, tmp_path, hooks=[rates], **settings)
    before = weights_of(trainer)
    trainer.train()
    assert rates.trained == ["projector"] * NUM_FIRST + ["language_model projector"] * 3
    after = weights_of(trainer)
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert all("lora_" in name or "modules_to_save" in name for name in moved)
    trainer.adapter.save(tmp_path / "final")
    finished = (tmp_path / "final", parts[1], parts[2])
    again = trainer_of(finished, tmp_path / "more", **WITHOUT)
    examples = held_out_of(trainer)
    assert loss_of(again, examples) == pytest.approx(loss_of(trainer, examples), rel=1e-5)


def test_another_tower_is_another_training(parts: tuple[Path, Path, Path], tmp_path: Path) -> None:
    tower = Path(shutil.copytree(parts[1], tmp_path / "tower"))
    trainer_of((parts[0], tower, parts[2]), tmp_path, max_steps=4).train()
    moved = Path(shutil.copytree(tower, tmp_path / "moved"))
    again = trainer_of((parts[0], moved, parts[2]), tmp_path, max_steps=4)
    saved = CheckpointManager(tmp_path / "checkpoints", Retention(9)).checkpoints()[-1]
    assert [str(one.verdict) for one in again.restore(saved)] == ["harmless"]
    save_tower(moved, initializer_range=0.05)
    again = trainer_of((parts[0], moved, parts[2]), tmp_path, max_steps=4)
    with pytest.raises(CheckpointError, match=r"base_model"):
        again.restore(saved)


def test_what_does_not_fit_together_is_refused(
    parts: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text('{"prompt": "a", "completion": "b"}\n' * 9)
    with pytest.raises(ValueError, match=r"vision_tower\.rows_without_images"):
        trainer_of((*parts[:2], text), tmp_path)
    ends = r"run_ends_in_first_phase\(total_steps=3, num_steps=3, phase=projector\)"
    with pytest.raises(ValueError, match=ends):
        trainer_of(parts, tmp_path, max_steps=3).prepare()
