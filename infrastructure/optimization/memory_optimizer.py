"""The memory optimizer: it measures memory use, reduces it, and recommends further reductions.

    optimizer = create_memory_optimizer(max_memory_percent=85.0)
    model = optimizer.optimize_for_training(model)

A run of Temper uses the same parts by itself: `enable_memory_optimization`.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from infrastructure.core.errors import InputError
from infrastructure.core.hardware import processor
from infrastructure.core.messages import phrase
from infrastructure.optimization.checkpointing import can_checkpoint, checkpoint_gradients
from infrastructure.optimization.memory_guard import Action, MemoryGuard
from infrastructure.optimization.memory_profile import MemoryProfile, profile_memory
from infrastructure.optimization.memory_readings import MemoryInfo, read_memory, release_memory
from infrastructure.optimization.recommendations import Recommendation, fixed_bytes, recommend

BATCH_SIZE = 32
MAX_WORKERS = 4
CROWDED_SHARE = 0.5  # of the available memory, used by weights, gradients and moments

log = logging.getLogger(__name__)


class MemoryOptimizer:
    """An optimizer of the memory use of a run, created by `create_memory_optimizer`.

    Attributes:
        profiles: the results of `memory_profiler`, the newest last.
        applied: descriptions of the changes that `optimize_for_training` made.
    """

    def __init__(
        self, max_memory_percent: float = 85.0, gradient_checkpointing: bool | str = "auto"
    ) -> None:
        self.max_memory_percent = max_memory_percent
        self.gradient_checkpointing = gradient_checkpointing
        self.profiles: list[MemoryProfile] = []
        self.applied: list[str] = []
        self._guard = MemoryGuard(max_memory_percent)
        self._model: torch.nn.Module | None = None

    def optimize_for_training(self, model: torch.nn.Module) -> torch.nn.Module:
        """Change a model so that it trains with less memory, and return it.

        The changes are listed in `applied`. The cache for generation is switched off. Gradient
        checkpointing is switched on if requested. With "auto", it is switched on if weights,
        gradients and moments take more than half of the memory that `max_memory_percent` allows.

        Raises:
            ValueError: if checkpointing was requested, but the model does not support it.
        """
        self._model, self.applied = model, []
        config = getattr(model, "config", None)
        if getattr(config, "use_cache", False):
            config.use_cache = False  # type: ignore[union-attr]
            self.applied.append(phrase("optimization.use_cache_turned_off"))
        mode = self.gradient_checkpointing
        if mode == "auto":
            mode = can_checkpoint(model) and self._is_crowded(model)
        if mode:
            checkpoint_gradients(model, mode if isinstance(mode, str) else "all")
            self.applied.append(f"gradient checkpointing: {mode}")
        release_memory()
        for line in self.applied:
            log.info("memory: %s", line)
        return model

    def create_memory_efficient_dataloader(self, dataset: Any, **options: Any) -> DataLoader[Any]:
        """Return a DataLoader with as many workers as cores and memory allow.

        The default of `batch_size` is 32, and a dataset with a length is shuffled unless `shuffle`
        is given. Every option of DataLoader can be given and takes precedence.
        """
        has_length = not isinstance(dataset, IterableDataset)
        has_batches = options.get("batch_sampler") is not None
        if has_length and options.get("sampler") is None and not has_batches:
            options.setdefault("shuffle", True)
        cores, info = processor().num_cores, read_memory()
        affordable = int(max(0.0, self._spare_bytes(info)) // (2 * info.process_bytes))
        is_small = cores <= 2 or (has_length and len(dataset) < 10 * BATCH_SIZE)
        num_workers = 0 if is_small else min(MAX_WORKERS, cores - 1, affordable)
        on_gpu = torch.cuda.is_available()
        if not has_batches:
            options.setdefault("batch_size", BATCH_SIZE)
        return DataLoader(dataset, **{"num_workers": num_workers, "pin_memory": on_gpu, **options})

    @contextmanager
    def memory_profiler(self, name: str) -> Iterator[MemoryProfile]:
        """Measure the memory of a block; at its end, fill in, log and keep the profile."""
        with profile_memory(name) as profile:
            yield profile
        self.profiles.append(profile)
        for line in profile.lines():
            log.info("%s", line)

    def get_memory_info(self) -> MemoryInfo:
        """Return system memory, this process's share of it, and GPU memory, in bytes."""
        return read_memory()

    def get_memory_recommendations(self) -> list[Recommendation]:
        """Return the changes that save memory for the optimized model, if there is one."""
        return [] if self._model is None else recommend(self._model)

    def release_if_needed(self) -> bool:
        """Release memory if more than `max_memory_percent` is in use; return whether it did so."""
        return self._guard.check() is Action.RELEASED

    def optimize(self) -> int:
        """Release unused memory, and return the bytes by which this process's memory fell."""
        return release_memory()

    def _is_crowded(self, model: torch.nn.Module) -> bool:
        info, weight = read_memory(), next(model.parameters())
        spare = self._spare_bytes(info)
        if weight.device.type == "cuda":
            gpu = info.gpus[weight.device.index or 0]
            spare = gpu.free_bytes - (1 - self.max_memory_percent / 100) * gpu.total_bytes
        there = sum(p.numel() * p.element_size() for p in model.parameters())
        return fixed_bytes(model) > CROWDED_SHARE * (spare + there)

    def _spare_bytes(self, info: MemoryInfo) -> float:
        return info.available_bytes - (1 - self.max_memory_percent / 100) * info.total_bytes


def create_memory_optimizer(
    max_memory_percent: float = 85.0, gradient_checkpointing: bool | str = "auto"
) -> MemoryOptimizer:
    """Create a memory optimizer.

    Args:
        max_memory_percent: the percentage of memory in use above which memory is released.
        gradient_checkpointing: "auto", True, False, "selective" or "offload".

    Raises:
        ValueError: if the percentage is not between 0 and 100, or the mode does not exist.
    """
    if not 0 < max_memory_percent <= 100:
        code = "optimization.invalid_max_memory_percent"
        raise InputError(code, max_memory_percent=max_memory_percent)
    if gradient_checkpointing not in (True, False, "auto", "selective", "offload"):
        code = "optimization.invalid_checkpointing_mode"
        raise InputError(code, gradient_checkpointing=gradient_checkpointing)
    return MemoryOptimizer(max_memory_percent, gradient_checkpointing)
