"""Limits of memory, caches and GPU for a run, as configured."""

import logging
from functools import partial

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.resource_config import CacheConfig, MemoryConfig
from infrastructure.config.types import amount_bytes
from infrastructure.core.messages import Setting, phrase
from infrastructure.data.preparation.plan import total_bytes_of
from infrastructure.data.store.token_cache import MEGABYTE
from infrastructure.optimization.gpu_capability import (
    limit_gpu_memory,
    require_capability,
    use_tf32,
)
from infrastructure.optimization.recommendations import Recommendation, recommend
from infrastructure.training.core.state import TrainingState
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Hook
from infrastructure.training.sizing.compile_benchmark import CompileBenchmark
from infrastructure.training.sizing.memory_extension import MemoryExtension, MemoryLimits

log = logging.getLogger(__name__)


def apply_resource_limits(trainer: EnhancedTrainer, config: DeploymentConfig) -> None:
    """Apply the limits of the device, and add the hooks that enforce memory limits.

    Raises:
        ValueError: the GPU is not the one that `resources.gpu` requires.
    """
    require_capability(trainer.device, config.resources.gpu.compute_capability)
    _limit_gpu(trainer, config)
    if config.enable_gpu_optimization:
        use_tf32(trainer.device)
    hooks: list[Hook] = []
    if config.training.compile_mode == "auto":
        hooks.append(CompileBenchmark(lambda: trainer.prepare().loop))
    if config.enable_memory_optimization:
        hooks.append(_memory_extension(trainer, config))
    trainer.add_hooks(hooks)


def caches_within(cache: CacheConfig, memory: MemoryConfig) -> CacheConfig:
    """Reduce the configured cache sizes so that memory and disk together take at most
    `memory.cache_size`.

    At most half of the limit is memory, and the rest is disk.
    """
    most = total_bytes_of(memory.cache_size)
    if most is None:
        return cache
    in_memory = min(cache.memory_size, most // 2 // MEGABYTE)
    on_disk = min(cache.disk_size, most // MEGABYTE - in_memory)
    return cache.copy_with(memory_size=in_memory, disk_size=on_disk)


def memory_facts(trainer: EnhancedTrainer) -> dict[str, object] | None:
    """Return what the memory optimizer did in this process; None if it is off."""
    extensions = [hook for hook in trainer.hooks.hooks if isinstance(hook, MemoryExtension)]
    return extensions[0].facts() if extensions else None


def _limit_gpu(trainer: EnhancedTrainer, config: DeploymentConfig) -> None:
    limit, device = config.resources.gpu.memory_limit, trainer.device
    if device.type != "cuda":
        given = {
            "memory.gpu_memory_fraction": config.memory.gpu_memory_fraction,
            "memory.gpu_cache_size": config.memory.gpu_cache_size,
            "resources.gpu.memory_limit": limit,
        }
        for key in [key for key, value in given.items() if value is not None]:
            log.warning(
                phrase("training.gpu_setting_without_effect", key=Setting(key), device=device)
            )
        return
    limit_bytes = None if limit is None else amount_bytes(limit, _gpu_total_bytes(trainer))
    limit_gpu_memory(device, limit_bytes, config.memory.gpu_memory_fraction)


def _memory_extension(trainer: EnhancedTrainer, config: DeploymentConfig) -> MemoryExtension:
    kept, device = config.memory.gpu_cache_size, trainer.device
    total = _gpu_total_bytes(trainer) if device.type == "cuda" else None
    settings = MemoryLimits(
        max_percent=config.max_memory_percent,
        limit_bytes=total_bytes_of(config.memory.cpu_memory_limit),
        gpu_cache_bytes=amount_bytes(kept, total) if kept and total else None,
        cache_seconds=config.memory.cache_ttl,
    )

    def release_data(unused_seconds: float) -> int:
        release = getattr(trainer.initialize_data(), "release_memory", None)
        return 0 if release is None else int(release(unused_seconds))

    return MemoryExtension(
        settings,
        device,
        release_data=release_data,
        recommend=partial(recommendations_for, trainer),
    )


def recommendations_for(trainer: EnhancedTrainer, state: TrainingState) -> list[Recommendation]:
    """Return recommendations for saving memory in this run."""
    return recommend(
        state.model,
        state.optimizer,
        micro_batch_size=state.micro_batch_size,
        optimizer_name=trainer.training_config.optimizer,
    )


def _gpu_total_bytes(trainer: EnhancedTrainer) -> int:
    return int(torch.cuda.get_device_properties(trainer.device).total_memory)
