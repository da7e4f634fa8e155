"""What a whole configuration says of its machine reaches the training."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.resource_config import CacheConfig, MemoryConfig
from infrastructure.core.hardware import memory
from infrastructure.optimization.memory_prediction import MemoryBudget
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.setup import resource_limits as machine_limits
from infrastructure.training.setup.resource_limits import (
    caches_within,
    memory_facts,
    recommendations_for,
)
from infrastructure.training.sizing.compile_benchmark import CompileBenchmark
from infrastructure.training.sizing.memory_extension import MemoryExtension
from infrastructure.training.trainer_factory import TrainerFactory


def trainer_for(**keywords: Any) -> EnhancedTrainer:
    return TrainerFactory().for_run(DeploymentConfig(device="cpu", **keywords))


def hook(trainer: EnhancedTrainer, kind: type) -> Any:
    return next((one for one in trainer.hooks.hooks if isinstance(one, kind)), None)


def test_a_run_holds_its_limits() -> None:
    trainer = trainer_for(
        **{
            "max_memory_percent": 70.0,
            "memory.cpu_memory_limit": "85%",
            "memory.cache_ttl": 60,
            "memory.worker_memory": "2GB",
            "memory.cache_size": "600MB",
        }
    )
    assert trainer.memory_budget == MemoryBudget(max_percent=70.0, cpu_limit="85%")
    assert (trainer.cache_config.memory_size, trainer.cache_config.disk_size) == (300, 300)
    settings = hook(trainer, MemoryExtension).settings
    assert settings.max_percent == 70.0
    assert settings.limit_bytes == int(0.85 * memory().total_bytes)
    assert settings.cache_seconds == 60
    assert trainer.adapter.memory_config.worker_memory == "2GB"


def test_the_switches_switch_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[torch.device] = []
    monkeypatch.setattr(machine_limits, "use_tf32", calls.append)
    off = trainer_for(enable_memory_optimization=False, enable_gpu_optimization=False)
    assert hook(off, MemoryExtension) is None
    assert memory_facts(off) is None
    assert calls == []
    on = trainer_for()
    assert hook(on, MemoryExtension) is not None
    assert hook(on, CompileBenchmark) is None
    assert calls == [torch.device("cpu")]
    both = trainer_for(**{"training.compile_mode": "auto"})
    assert hook(both, CompileBenchmark) is not None
    assert hook(both, MemoryExtension) is not None


def test_a_gpus_limits_on_a_cpu_are_reported_to_have_no_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trainer_for(**{"memory.gpu_memory_fraction": 0.9, "resources.gpu.memory_limit": "8GB"})
    of = "training.gpu_setting_without_effect(key="
    assert f"{of}memory.gpu_memory_fraction, device=cpu)" in caplog.text
    assert f"{of}resources.gpu.memory_limit, device=cpu)" in caplog.text
    assert "gpu_cache_size" not in caplog.text
    trainer_for(**{"memory.gpu_cache_size": "1GB"})
    assert f"{of}memory.gpu_cache_size, device=cpu)" in caplog.text


def test_a_gpu_is_limited_by_shares_of_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(machine_limits, "limit_gpu_memory", lambda *given: calls.append(given))
    properties = SimpleNamespace(total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    gpu = torch.device("cuda")
    on_gpu: Any = SimpleNamespace(device=gpu)
    on_cpu: Any = SimpleNamespace(device=torch.device("cpu"))
    given = DeploymentConfig(
        **{
            "resources.gpu.memory_limit": "50%",
            "memory.gpu_memory_fraction": 0.9,
            "memory.gpu_cache_size": "25%",
        }
    )
    for config in (given, DeploymentConfig()):
        machine_limits._limit_gpu(on_gpu, config)
    assert calls == [(gpu, 40 << 30, 0.9), (gpu, None, None)]
    kept = [
        machine_limits._memory_extension(trainer, config).settings.gpu_cache_bytes
        for trainer, config in ((on_gpu, given), (on_gpu, DeploymentConfig()), (on_cpu, given))
    ]
    assert kept == [20 << 30, None, None]


def test_a_gpu_that_must_be_there_and_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match=r"optimization\.compute_capability_without_gpu"):
        trainer_for(**{"resources.gpu.compute_capability": 8.0})


@pytest.mark.parametrize(
    ("most", "in_memory", "on_disk"),
    [(None, 1000, 10000), ("100GB", 1000, 10000), ("4GB", 1000, 3000), ("600MB", 300, 300)],
)
def test_all_caches_together_stay_within_their_size(
    most: str | None, in_memory: int, on_disk: int
) -> None:
    cache = caches_within(CacheConfig(), MemoryConfig(cache_size=most))
    assert (cache.memory_size, cache.disk_size) == (in_memory, on_disk)


@pytest.fixture
def small_run(saved_llama: Path, tmp_path: Path) -> EnhancedTrainer:
    rows = [{"prompt": f"Reverse {n}", "completion": str(n)[::-1]} for n in range(100, 164)]
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    return trainer_for(
        **{
            "model.name": str(saved_llama),
            "data.path": str(data),
            "data.max_length": 64,
            "data.num_workers": 0,
            "training.batch_size": 16,
            "training.max_steps": 3,
            "cache.directory": str(tmp_path / "cache"),
        }
    )


def test_prepared_data_leaves_memory_on_request_and_is_the_same_afterwards(
    small_run: EnhancedTrainer,
) -> None:
    data: Any = small_run.initialize_data()
    before = [example.input_ids for example in next(data.train_batches(0, 0, 16))]
    memory_hook = hook(small_run, MemoryExtension)
    assert memory_hook.release_data(1000.0) == 0  # it was used just now
    assert memory_hook.release_data(0.0) > 0
    assert memory_hook.release_data(0.0) == 0
    after = [example.input_ids for example in next(data.train_batches(0, 0, 16))]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_advice_is_about_this_training(
    small_run: EnhancedTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_run.train()
    monkeypatch.setattr("infrastructure.optimization.recommendations.LEAST_SAVING_BYTES", 1)
    advice = [one.change for one in recommendations_for(small_run, small_run.state)]
    assert "optimization.checkpointing()" in advice
    assert "training.optimizer=adamw_8bit" in advice


def test_what_was_done_is_in_the_facts(small_run: EnhancedTrainer) -> None:
    small_run.train()
    facts = memory_facts(small_run)
    assert facts is not None
    assert facts["highest_bytes"] > 10**7
    assert facts["limit_bytes"] is None
    json.dumps(facts)
