import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.config.sources.load import load_config
from infrastructure.models.backend_choice import BackendChoice
from infrastructure.training import trainer_factory, unsloth_trainer
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.resume.fingerprint import settings_of
from infrastructure.training.trainer_factory import TrainerFactory, show_gpus
from infrastructure.training.unsloth_trainer import UnslothTrainer


@pytest.mark.parametrize(
    ("backend", "kind"),
    [("auto", EnhancedTrainer), ("transformers", EnhancedTrainer), ("unsloth", UnslothTrainer)],
)
def test_the_backend_chooses_the_trainer(
    backend: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[tuple[str, Path | None]] = []
    monkeypatch.setattr(
        unsloth_trainer, "prepare_backend", lambda model, *to: prepared.append((model.backend, *to))
    )
    config = ModelConfig(name="some/model", backend=backend)
    trainer = TrainerFactory().create_trainer(
        config,
        TrainingConfig(seed=7),
        DataConfig(),
        device="cpu",
        cache_config=CacheConfig(directory="cached"),
    )
    assert type(trainer) is kind
    assert prepared == [("unsloth", Path("cached"))] * (backend == "unsloth")
    assert trainer.cache_config.directory == "cached"
    assert trainer.model_config.backend == backend
    assert trainer.training_config.seed == 7


def test_a_run_takes_what_is_chosen_for_it_and_stays_with_that(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = DeploymentConfig(device="cpu", output_dir=str(tmp_path))
    monkeypatch.setattr(unsloth_trainer, "prepare_backend", lambda *arguments: None)
    assert type(TrainerFactory().for_run(config, "unsloth")) is UnslothTrainer
    choice, about = BackendChoice("unsloth", "it was chosen"), list[dict[str, Any]]()
    monkeypatch.setattr(
        trainer_factory, "choose_backend", lambda *_, **given: (about.append(given), choice)[1]
    )
    trainer = TrainerFactory().for_run(config)
    assert isinstance(trainer, UnslothTrainer)
    assert trainer.backend_sentence == "it was chosen"
    assert settings_of(trainer)["model.backend"] == "unsloth"  # which a checkpoint records
    config.cache.directory = "cached"
    TrainerFactory().for_run(config, "transformers")
    usual = {"num_processes": 1, "began_with": None, "cache_directory": None}
    given = {"began_with": "transformers", "cache_directory": Path("cached")}
    assert about == [usual, {**usual, **given}]
    config.model.backend = "transformers"
    assert type(TrainerFactory().for_run(config)) is EnhancedTrainer


@pytest.mark.parametrize(
    ("keywords", "code"),
    [
        (
            {"training": {"enabled_extensions": ["multimodal"]}},
            r"vision_tower\.not_set",
        ),
        (
            {"data": {"path": "rows.jsonl", "buffer_size": 5}},
            r"config\.setting_without_effect\(setting=data\.buffer_size=5",
        ),
    ],
)
def test_every_door_refuses_what_cannot_be_carried_out(
    keywords: dict[str, object], code: str
) -> None:
    config = DeploymentConfig(**keywords, device="cpu")
    with pytest.raises(ValueError, match=code):
        TrainerFactory().for_run(config)
    with pytest.raises(ValueError, match=code):
        TrainerFactory().create_trainer(config.model, config.training, config.data, device="cpu")


def test_a_run_of_the_embedded_model_without_data_takes_the_samples() -> None:
    config = DeploymentConfig(device="cpu")
    trainer = TrainerFactory().for_run(config)
    assert str(trainer.data_config.path).endswith("train.jsonl")
    for key in ("data.path", "training.enabled_extensions", "quantum.max_overhead_percent"):
        assert config.source(key).place == "by the samples"


def test_the_gpus_of_a_configuration_are_the_ones_that_cuda_sees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(trainer_factory, "_num_gpus", lambda: 0)
    TrainerFactory().for_run(DeploymentConfig(cuda_visible_devices="", device="cpu"))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_our_loggers_keep_to_the_level_of_a_configuration() -> None:
    ours = logging.getLogger("infrastructure")
    before = ours.level
    TrainerFactory().for_run(DeploymentConfig(device="cpu"))
    assert ours.level == before
    TrainerFactory().for_run(DeploymentConfig(device="cpu", log_level="ERROR"))
    assert not logging.getLogger("infrastructure.training.loop.loop").isEnabledFor(logging.WARNING)


@pytest.mark.parametrize(("initialized", "seen"), [(True, 1), (False, 2)])
def test_gpus_that_cannot_be_chosen_any_more_are_reported(
    initialized: bool, seen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialized)
    monkeypatch.setattr(trainer_factory, "_num_gpus", lambda: seen)
    with pytest.raises(ValueError, match=r"training\.visible_devices_too_late.*devices=1"):
        show_gpus(DeploymentConfig(cuda_visible_devices="1"))
    show_gpus(DeploymentConfig())


def test_as_many_gpus_as_are_chosen_may_be_seen_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(trainer_factory, "_num_gpus", lambda: 2)
    show_gpus(DeploymentConfig(cuda_visible_devices="1,2", device="cpu"))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1,2"


def test_a_gpu_that_is_not_there_is_no_reason_to_train_on_the_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match=r"config\.visible_device_not_found.*devices=3"):
        show_gpus(DeploymentConfig(cuda_visible_devices="3"))
    show_gpus(DeploymentConfig(cuda_visible_devices="3", device="cpu"))
    show_gpus(load_config())  # the variable is one of all programs
