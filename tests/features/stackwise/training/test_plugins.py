"""Masking, quantisation and caching of stack-wise training can be added to: whole runs with one of
each that somebody wrote."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.config.base import ConfigurationError
from infrastructure.config.registries import STRATEGIES
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.registry import Registry
from infrastructure.features.stackwise.registries import CACHES, CORRUPTIONS, QUANTIZATIONS
from infrastructure.features.stackwise.training.masking import MaskVocabulary
from infrastructure.features.stackwise.training.quantized_trunk import QUANTIZATIONS as OURS
from infrastructure.features.stackwise.training.quantized_trunk import Quantization
from infrastructure.training.trainer_factory import TrainerFactory
from tests.deployment.runs import deploy, losses
from tests.features.stackwise.training.memory_cache import MemoryCache
from tests.features.stackwise.training.test_strategy import STEPS, config_of, train_alone

BLOCKWISE: dict[str, Any] = {"mode": "blockwise", "block_size": 2, "num_epochs": 1}


def test_another_corruption_trains(tmp_path: Path) -> None:
    used = []

    def next_word(ids: Any, vocabulary: MaskVocabulary, random: Any) -> Any:
        used.append(len(ids))
        places = np.searchsorted(vocabulary.ordinary, ids)
        return vocabulary.ordinary[(places + 1) % len(vocabulary.ordinary)]

    masked = {**BLOCKWISE, "time_step_masking": True, "corruption": "next_word"}
    with CORRUPTIONS.registered("next_word", next_word):
        run = train_alone(config_of(tmp_path, **masked), tmp_path)
    assert sum(used) > 0
    assert len(losses(run)) == 2 * STEPS


def test_another_quantisation_stores_the_trunk(tmp_path: Path) -> None:
    widths, restored = set(), set()

    def store(weight: torch.Tensor) -> dict[str, torch.Tensor]:
        widths.add(weight.shape[-1])
        scales = weight.abs().amax(dim=1, keepdim=True).float().clamp_min(1e-12) / 127
        return {"payload": (weight / scales).round().to(torch.int8), "scales": scales}

    def restore(stored: Any, shape: torch.Size) -> torch.Tensor:
        restored.add(shape)
        return stored["payload"].float() * stored["scales"]

    quantized = {**BLOCKWISE, "quantization_enabled": True, "quantization_type": "int8_rows"}
    with QUANTIZATIONS.registered("int8_rows", Quantization(store, restore)):
        trainer = TrainerFactory().for_run(config_of(tmp_path, **quantized))
        lines = trainer.strategy.run_parts(trainer).lines()
        assert lines[0].startswith("stackwise.plan_heading(")  # the plan knows its size
        assert trainer.train().step == 2 * STEPS
    assert len(widths) > 1
    assert torch.Size((32, 32)) in restored


def test_another_cache_is_read(tmp_path: Path) -> None:
    made = MemoryCache.made
    cached = {**BLOCKWISE, "cache_activations": True, "cache_dtype": "fp32"}
    own, ours = tmp_path / "own", tmp_path / "ours"
    for folder in (own, ours):
        folder.mkdir()
    with CACHES.registered("memory", MemoryCache):
        train_alone(config_of(tmp_path, **cached, cache_storage="memory"), own)
    assert MemoryCache.made > made
    assert not list(tmp_path.rglob("*.page"))
    assert losses(own) == losses(train_alone(config_of(tmp_path, **cached), ours))


def test_what_a_quantisation_lacks_is_reported_before_there_is_a_run(tmp_path: Path) -> None:
    def refuse(*_: Any) -> Any:
        raise ValueError("no such library")

    with QUANTIZATIONS.registered("missing", Quantization(refuse, refuse)):
        config = config_of(
            tmp_path, **BLOCKWISE, quantization_enabled=True, quantization_type="missing"
        )
        with pytest.raises(ValueError, match="no such library"):
            deploy(config)
    assert not list(tmp_path.rglob("run.json"))


@pytest.mark.parametrize("registry", [STRATEGIES, CORRUPTIONS, QUANTIZATIONS, CACHES])
def test_every_built_in_name_is_registered(registry: Registry[Any]) -> None:
    assert OURS is QUANTIZATIONS
    assert registry.built_in
    assert all(registry.get(name) for name in registry.built_in)


@pytest.mark.parametrize(
    ("setting", "value", "meant"),
    [
        ("strategy", "progresive", "progressive"),
        ("corruption", "unifrom", "uniform"),
        ("quantization_type", "nf_fp", "nf_fp8"),
        ("cache_storage", "disc", None),
    ],
)
def test_a_name_that_there_is_not_is_refused(setting: str, value: str, meant: str | None) -> None:
    with pytest.raises(ConfigurationError) as caught:
        TrainingConfig(**{setting: value})
    text = str(caught.value)
    assert f"setting=training.{setting}, reason=" in text
    assert "core.unknown_plugin(unknown=core.unknown_name(" in text
    assert f", name={value}, " in text
    assert meant is None or f"core.did_you_mean(meant={meant})" in text
