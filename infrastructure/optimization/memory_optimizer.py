r"""The memory optimizer: it measures memory use, reduces it, and recommends further reductions.

    optimizer = create_memory_optimizer(max_memory_percent=85.0)
    model = optimizer.optimize_for_training(model)
    loader = optimizer.create_memory_efficient_dataloader(dataset)
    with optimizer.memory_profiler("training_step") as profile:
        ...
    print(*optimizer.get_memory_recommendations(), sep="\n")

A run of Temper uses the same parts by itself: `enable_memory_optimization`.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from infrastructure.core.errors import InputError
from infrastructure.core.hardware import processor
from infrastructure.core.messages import phrase
from infrastructure.optimization.checkpointing import (
    can_checkpoint,
    checkpoint_gradients,
)
from infrastructure.optimization.memory_guard import Action, MemoryGuard
from infrastructure.optimization.memory_profile import MemoryProfile, profile_memory
from infrastructure.optimization.memory_readings import MemoryInfo, read_memory, release_memory
from infrastructure.optimization.recommendations import (
    Forward,
    MemoryUse,
    Recommendation,
    measure_use,
    recommend,
)

BATCH_SIZE = 32
MAX_WORKERS = 4
SAMPLE_ITEMS = 8
QUEUE_SHARE = 0.05  # of the available memory, for waiting batches
MAX_PREFETCH = 4
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
        self._use: MemoryUse | None = None
        self._micro_batch_size = 1

    def optimize_for_training(self, model: torch.nn.Module) -> torch.nn.Module:
        """Change a model so that it trains with less memory, and return it.

        The changes are listed in `applied`. The cache for generation is switched off. Gradient
        checkpointing is switched on if requested. With "auto", it is switched on if weights,
        gradients and moments take more than half of the memory that `max_memory_percent` allows.

        Raises:
            ValueError: if checkpointing was requested, but the model does not support it.
        """
        self._model, self._use, self.applied = model, measure_use(model), []
        config = getattr(model, "config", None)
        if getattr(config, "use_cache", False):
            config.use_cache = False  # type: ignore[union-attr]
            self.applied.append(phrase("optimization.use_cache_turned_off"))
        mode = self._checkpointing_for(model, self._use)
        if mode != "off":
            checkpoint_gradients(model, mode)
            self.applied.append(f"gradient checkpointing: {mode}")
        release_memory()
        for line in self.applied:
            log.info("memory: %s", line)
        return model

    def create_memory_efficient_dataloader(self, dataset: Any, **options: Any) -> DataLoader[Any]:
        """Return a DataLoader whose workers and queues fit into memory.

        The size of the first items is measured, so that prefetched batches take at most a twentieth
        of the available memory. The default of `batch_size` is 32, and a dataset with a length is
        shuffled unless `shuffle` is given. Every option of DataLoader can be given and takes
        precedence.
        """
        has_order = not isinstance(dataset, IterableDataset)
        options.setdefault("batch_size", BATCH_SIZE)
        if has_order and "sampler" not in options and "batch_sampler" not in options:
            options.setdefault("shuffle", True)
        options.setdefault("num_workers", self._num_workers(dataset, has_order))
        options.setdefault("pin_memory", torch.cuda.is_available())
        if options["num_workers"]:
            batch_bytes = item_bytes(dataset, has_order) * (options["batch_size"] or 1)
            queue_bytes = QUEUE_SHARE * read_memory().available_bytes / options["num_workers"]
            options.setdefault(
                "prefetch_factor",
                min(MAX_PREFETCH, max(1, int(queue_bytes // max(1, batch_bytes)))),
            )
        return DataLoader(dataset, **options)

    @contextmanager
    def memory_profiler(self, name: str) -> Iterator[MemoryProfile]:
        """Measure a block of code: peak memory, memory not freed at its end, lines that allocate
        most.

        When the block ends, the profile is filled in, logged, and appended to `profiles`.
        """
        with profile_memory(name) as profile:
            yield profile
        self.profiles.append(profile)
        for line in profile.lines():
            log.info("%s", line)

    def get_memory_info(self) -> MemoryInfo:
        """Return the main memory, this process's share of it, and the memory of GPUs, in bytes."""
        return read_memory()

    def measure(
        self,
        forward: Forward,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        micro_batch_size: int = 1,
    ) -> MemoryUse:
        """Measure the memory that one micro-batch takes, for `get_memory_recommendations`.

        Args:
            forward: computes the loss of one micro-batch; see `measure_use`.

        Raises:
            ValueError: if no model was given to `optimize_for_training` yet.
        """
        if self._model is None:
            raise InputError("optimization.model_not_given")
        self._use = measure_use(self._model, forward, optimizer)
        self._micro_batch_size = micro_batch_size
        return self._use

    def get_memory_recommendations(self) -> list[Recommendation]:
        """Return recommended changes, each with the memory that it saves for the optimized model.

        Call `measure` first to include savings in activations. Without a model, the list is empty.
        """
        if self._use is None:
            return []
        return recommend(self._use, micro_batch_size=self._micro_batch_size)

    def release_if_needed(self) -> bool:
        """Release memory if more than `max_memory_percent` is in use; return whether it did so."""
        return self._guard.check() is Action.RELEASED

    def optimize(self) -> int:
        """Release unused memory of this process, its heap and the GPU's allocator.

        Returns:
            The number of bytes by which this process's resident memory fell.
        """
        return release_memory()

    def _checkpointing_for(self, model: torch.nn.Module, use: MemoryUse) -> str:
        if self.gradient_checkpointing != "auto":
            mode = self.gradient_checkpointing
            return mode if isinstance(mode, str) else "all" if mode else "off"
        # The weights are already in memory.
        available_bytes = self._available_bytes(model) + use.weights_bytes
        crowded = use.total_bytes > CROWDED_SHARE * available_bytes
        return "all" if crowded and can_checkpoint(model) else "off"

    def _available_bytes(self, model: torch.nn.Module) -> float:
        """Return how many more bytes may be used under `max_memory_percent`.

        This is memory of the GPU or the host, whichever holds the model.
        """
        info, share = read_memory(), self.max_memory_percent / 100
        device = next(model.parameters()).device
        if device.type == "cuda":
            gpu = info.gpus[device.index or 0]
            return gpu.free_bytes - (1 - share) * gpu.total_bytes
        return info.available_bytes - (1 - share) * info.total_bytes

    def _num_workers(self, dataset: Any, has_order: bool) -> int:
        """Return the number of DataLoader workers, each of which takes some hundred MB.

        The number is 0 with few cores or items.
        """
        cores = processor().num_cores
        is_small = has_order and len(dataset) < 10 * BATCH_SIZE
        info = read_memory()
        spare_bytes = info.available_bytes - (1 - self.max_memory_percent / 100) * info.total_bytes
        affordable = int(max(0, spare_bytes) // (2 * info.process_bytes))
        return 0 if is_small or cores <= 2 else min(MAX_WORKERS, cores - 1, affordable)


def item_bytes(dataset: Any, has_order: bool) -> int:
    """Return the mean size of the first items of a dataset: the bytes of tensors and texts."""
    items = [dataset[i] for i in range(min(SAMPLE_ITEMS, len(dataset)))] if has_order else None
    sample = list(islice(iter(dataset), SAMPLE_ITEMS)) if items is None else items
    return sum(map(_size, sample)) // max(1, len(sample))


def _size(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    return len(value) if isinstance(value, str | bytes) else int(getattr(value, "nbytes", 8))


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
        raise InputError(
            "optimization.invalid_max_memory_percent", max_memory_percent=max_memory_percent
        )
    if gradient_checkpointing not in (True, False, "auto", "selective", "offload"):
        raise InputError(
            "optimization.invalid_checkpointing_mode",
            gradient_checkpointing=gradient_checkpointing,
        )
    return MemoryOptimizer(max_memory_percent, gradient_checkpointing)
