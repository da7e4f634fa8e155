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
from tests.deployment.runs import deploy, losses
from tests.features.stackwise.training.memory_cache import MemoryCache
from tests.features.stackwise.training.test_strategy import config_of, train

BLOCKWISE: dict[str, Any] = {"mode": "blockwise", "block_size": 2, "num_epochs": 1}


def test_another_corruption_trains(tmp_path: Path) -> None:
    used = []

    def next_word(ids: Any, vocabulary: MaskVocabulary, random: Any) -> Any:
        used.append(len(ids))
        places = np.searchsorted(vocabulary.ordinary, ids)
        return vocabulary.ordinary[(places + 1) % len(vocabulary.ordinary)]

    masked = {**BLOCKWISE, "time_step_masking": True}
    with CORRUPTIONS.registered("next_word", next_word):
        own = train(tmp_path, "own", **masked, corruption="next_word")
    assert sum(used) > 0
    assert losses(own) != losses(train(tmp_path, "ours", **masked))


def test_another_quantisation_stores_the_trunk(tmp_path: Path) -> None:
    widths = set()

    def store(weight: torch.Tensor) -> dict[str, torch.Tensor]:
        widths.add(weight.shape[-1])
        scales = weight.abs().amax(dim=1, keepdim=True).float().clamp_min(1e-12) / 127
        return {"payload": (weight / scales).round().to(torch.int8), "scales": scales}

    def restore(stored: Any, shape: torch.Size) -> torch.Tensor:
        return stored["payload"].float() * stored["scales"]

    quantized = {**BLOCKWISE, "quantization_enabled": True}
    with QUANTIZATIONS.registered("int8_rows", Quantization(store, restore)):
        config = config_of(tmp_path, **quantized, quantization_type="int8_rows")
        run, lines = deploy(config)
    assert len(widths) > 1
    # the plan knows its size
    assert any(line.startswith("stackwise.plan_heading(") for line in lines)
    assert losses(run) != losses(train(tmp_path, "ours", **quantized))


def test_another_cache_is_read(tmp_path: Path) -> None:
    made = MemoryCache.made
    cached = {**BLOCKWISE, "cache_activations": True, "cache_dtype": "fp32"}
    with CACHES.registered("memory", MemoryCache):
        own = train(tmp_path, "own", **cached, cache_storage="memory")
    assert MemoryCache.made > made
    assert not list(tmp_path.rglob("*.page"))
    assert losses(own) == losses(train(tmp_path, "ours", **cached))


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
