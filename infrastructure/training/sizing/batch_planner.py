"""A planner that chooses the batch plan once, and stores which sizes fit into memory."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.cache_folder import cache_directory
from infrastructure.core.features import fields_of_features
from infrastructure.core.json_text import JsonObject
from infrastructure.training.model_adapters.base_adapter import ModelAdapter
from infrastructure.training.resume.fingerprint import installed_versions
from infrastructure.training.sizing.batch_plan import (
    BatchPlan,
    accumulation_for,
    configured,
    given_accumulation,
    measured,
    measured_before,
    repeated,
)
from infrastructure.training.sizing.cost_measurement import CostMeasurement
from infrastructure.training.sizing.micro_batch_memory import (
    KnownMicroBatchLimit,
    describe_device,
    memory_limits,
)

Sections = tuple[ModelConfig, TrainingConfig, DataConfig]
VERSIONS_THAT_COUNT = ("torch", "transformers", "peft", "bitsandbytes", "unsloth")


class BatchPlanner:
    """A planner of the micro-batch size and gradient accumulation of one run.

    Args:
        sections: the configuration's model, training and data sections.
        cache: returns the current cache section.
        fit: returns the object that measures the run, once model and data are loaded.
    """

    def __init__(
        self,
        sections: Sections,
        cache: Callable[[], CacheConfig],
        adapter: ModelAdapter,
        fit: Callable[[], CostMeasurement],
    ) -> None:
        self.model_config, self.config, self.data_config = sections
        self.cache = cache
        self.adapter = adapter
        self.fit = fit
        self._plan = configured(self.config)

    def decide(self) -> BatchPlan:
        """Return the batch plan. With `batch_size: auto`, measure it on the first call.

        Raises:
            DoesNotFitError: not even one example fits.
        """
        if self._plan is None:
            fit = self.fit()
            self._plan = measured(
                self.config,
                fit.data.num_examples,
                lambda largest: fit.search(
                    largest, partial(accumulation_for, self.config, largest=largest)
                ),
                measured_before(self.cache_directory),
                self._tuning_key(fit),
                fit.budget.size_bytes(self.adapter.device),
            )
        return self._plan

    def repeat(self, resolved: Mapping[str, Any]) -> None:
        """Use the batch plan stored in a checkpoint, unless the configuration sets one."""
        self._plan = repeated(self.config, resolved) or self._plan

    @property
    def cache_directory(self) -> Path:
        """The folder of cached measurements on this machine."""
        return cache_directory(self.cache().directory)

    def memory_limit(self) -> KnownMicroBatchLimit:
        """Return the known limit of the micro-batch size for this model on this device."""
        return KnownMicroBatchLimit(memory_limits(self.cache_directory), self._machine_key())

    def remember_limit(self, micro_batch_size: int) -> None:
        """Store a micro-batch size that is tried because a larger one did not fit."""
        self.memory_limit().remember(micro_batch_size)

    def _machine_key(self) -> dict[str, Any]:
        return {
            **describe_device(self.adapter.device),
            "model": self.model_config.name,
            "max_length": self.data_config.max_length,
            "precision": self.adapter.precision.name,
            "lora": bool(self.adapter.describe().get("lora")),
            "gradient_checkpointing": self.config.gradient_checkpointing
            and self.config.gradient_checkpointing_mode,
        }

    def _tuning_key(self, fit: CostMeasurement) -> JsonObject:
        """Return everything that affects the fastest batch: hardware, versions, model, lengths."""
        versions = installed_versions()
        parameters = list(fit.model.parameters())
        return {
            **self._machine_key(),
            "what": "batch_size",
            "threads": torch.get_num_threads(),
            "versions": {name: versions.get(name) for name in VERSIONS_THAT_COUNT},
            "parameters": sum(p.numel() for p in parameters),
            "trained": sum(p.numel() for p in parameters if p.requires_grad),
            "optimizer": self.config.optimizer,
            "strategy": self.config.strategy_for(self.model_config),
            "features": self.config.model_dump(
                mode="json",
                include=set(fields_of_features("training")),
                exclude_defaults=True,
            ),
            "compile_mode": self.config.compile_mode,
            "packs": bool(getattr(self.adapter, "packs", False)),
            "longest": self.adapter.count_tokens(fit.longest(1)),
            "accumulation": given_accumulation(self.config),
        }
