"""The classes that are made from a whole configuration."""

import re
from pathlib import Path

import pytest
import torch

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.errors import CheckpointError
from infrastructure.features.specification.whole_config import (
    DataPipeline,
    ModelManager,
    UnslothTrainer,
    own_loop_checkpoints,
)
from tests.features.specification.test_context import configure


def test_data_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"specification\.texts_without_tokenizer"):
        DataPipeline(DataConfig(path=str(tmp_path)))


def test_a_batch_has_the_examples_of_a_step(saved_llama: Path, tmp_path: Path) -> None:
    config = configure(saved_llama, tmp_path, batch_size=3, gradient_accumulation=2, seed=9)
    data, again = (DataPipeline(config) for _ in range(2))
    assert [len(batch) for batch in data] == [6, 6, 6, 2]
    first = [[example.input_ids.tolist() for example in batch] for batch in data]
    assert [[example.input_ids.tolist() for example in batch] for batch in again] == first
    assert data.cache.is_relative_to(tmp_path / "cache")
    config.training.seed = 8
    other = DataPipeline(config)
    assert [[example.input_ids.tolist() for example in batch] for batch in other] != first
    config.training.batch_size = "auto"
    assert [len(batch) for batch in DataPipeline(config)] == [1] * 20
    own = DataPipeline(config.data, data.tokenizer, seed=9, cache_config=config.cache)
    assert len(next(own.dataloader)) == 1


def test_a_manager_has_the_settings_of_its_configuration(saved_llama: Path, tmp_path: Path) -> None:
    config = configure(saved_llama, tmp_path, seed=9, gradient_checkpointing=True)
    manager = ModelManager(config)
    assert (manager.seed, manager.max_length, manager.device) == (9, 64, torch.device("cpu"))
    assert ModelManager(config, seed=3).seed == 3
    model = manager.base_model
    assert getattr(model, "is_gradient_checkpointing")  # noqa: B009
    saved = manager.save_checkpoint({"step": 2, "model": model.state_dict(), "note": "mine"})
    found = manager.load_checkpoint(saved)
    assert (found["step"], found["note"], "optimizer" in found) == (2, "mine", False)
    other = manager.save_checkpoint({"step": 3, "model": {"x": torch.zeros(1)}})
    wrong = rf"checkpoint_of_other_model\(path={re.escape(str(other))}, error=Error\(s\) in loading"
    with pytest.raises(CheckpointError, match=wrong):
        manager.load_checkpoint(other)
    plain = ModelManager(
        ModelConfig(name=str(saved_llama), lora_config={"r": 2}), device=manager.device, seed=0
    )
    assert plain.adapters == ["default"]
    with pytest.raises(ValueError, match=r"specification\.manager_without_checkpoint_dir"):
        plain.save_checkpoint({"step": 2, "model": {}})


def test_a_whole_configuration_has_all_sections_itself(saved_llama: Path, tmp_path: Path) -> None:
    config = configure(saved_llama, tmp_path)
    with pytest.raises(ValueError, match=r"specification\.configuration_and_sections"):
        UnslothTrainer(config, TrainingConfig())
    with pytest.raises(ValueError, match=r"specification\.configuration_and_sections"):
        UnslothTrainer(config, cache_config=config.cache)
    folder = own_loop_checkpoints(config)
    assert re.fullmatch(
        rf"{tmp_path}/runs/\d{{8}}-\d{{6}}-own-loop-[0-9a-f]{{4}}/checkpoints", str(folder)
    )
