"""A factory that creates trainers from the configuration."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig, check_sections
from infrastructure.config.merging.plugin_names import require_shareable
from infrastructure.config.merging.precedence import Layer
from infrastructure.config.methods import SFT
from infrastructure.config.process_wide import no_such_gpu, wants_gpus_by_number
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.launcher import LaunchedProcess, launched_process
from infrastructure.data.defaults import make_ready
from infrastructure.models.backend_choice import Backend, choose_backend
from infrastructure.models.registry import MODELS
from infrastructure.optimization.memory_prediction import MemoryBudget
from infrastructure.training.core.precision import choose_device
from infrastructure.training.distributed.group import ALONE, Group
from infrastructure.training.distributed.ranks import Ranks
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.placement import Placement
from infrastructure.training.setup.resource_limits import apply_resource_limits, caches_within
from infrastructure.training.unsloth_trainer import UnslothTrainer

PACKAGE = "infrastructure"  # the root of our loggers; those of other libraries are left alone


class TrainerFactory:
    """A stateless factory of trainers."""

    def for_run(
        self, config: DeploymentConfig, began_with: Backend | None = None, **options: object
    ) -> EnhancedTrainer:
        """Create the trainer for a whole configuration, with its device, cache and processes.

        Args:
            began_with: the library that loads the model if `model.backend` is `auto` and an earlier
                part of the run used it. None: see `choose_backend`.

        Raises:
            ConfigurationError: a setting cannot be used. The message has a sentence for each.
        """
        make_ready(config)
        config.know_models(MODELS)
        show_gpus(config)
        device, directory = choose_device(config.device), config.cache.directory
        choice = choose_backend(
            config.model,
            config.training,
            device,
            num_processes=num_processes_for(config, device, launched_process()),
            began_with=began_with,
            cache_directory=Path(directory) if directory else None,
        )
        return self.for_one_process(
            config,
            choice.backend,
            placement=Placement(self._ranks(config, device, options)),
            backend_sentence=choice.sentence,
            **options,
        )

    def for_one_process(
        self, config: DeploymentConfig, backend: Backend = "transformers", **options: object
    ) -> EnhancedTrainer:
        """Create the trainer of `for_run`, but for a single process.

        Args:
            backend: the library that loads the model if `model.backend` is `auto`.
        """
        make_ready(config)
        config.know_models(MODELS)
        show_gpus(config)
        if config.source("log_level").layer is not Layer.DEFAULT:
            logging.getLogger(PACKAGE).setLevel(config.log_level)
        trainer = self.create_trainer(
            config.model,
            config.training,
            config.data,
            device=config.device,
            cache_config=caches_within(config.cache, config.memory),
            memory_config=config.memory,
            memory_budget=MemoryBudget.of(config),
            sections=config.sections_of_features(),
            backend=backend,
            **options,
        )
        apply_resource_limits(trainer, config)
        return trainer

    def _ranks(
        self, config: DeploymentConfig, device: torch.device, options: Mapping[str, object]
    ) -> Group | Ranks:
        """Return the ranks if several processes are configured or launched; otherwise `ALONE`."""
        launch = launched_process()
        if launch is not None and launch.rank != 0:
            raise ConfigurationError(
                "training.not_first_launched_process", rank=launch.rank, size=launch.size
            )
        size = num_processes_for(config, device, launch)
        if size == 1:
            return ALONE
        given = [name for name in ("model_adapter", "training_strategy") if options.get(name)]
        if given:
            raise ConfigurationError(
                "training.own_parts_in_one_process", size=size, given=" and ".join(given)
            )
        require_shareable(config)
        return Ranks(config, size, device, launch, config.process_timeout)

    def create_trainer(
        self,
        model_config: ModelConfig,
        training_config: TrainingConfig,
        data_config: DataConfig,
        backend: Backend = "transformers",
        **options: Any,
    ) -> EnhancedTrainer:
        """Create the trainer for `model_config.backend`, or for `backend` if that is `auto`.

        `options` are keyword arguments of EnhancedTrainer.

        Raises:
            ConfigurationError: a setting cannot be used. The message has a sentence for each.
        """
        if training_config.method != SFT:
            raise ConfigurationError(
                "training.method_needs_trl_trainer", method=training_config.method
            )
        check_sections(model_config, training_config, data_config, options.get("sections", {}))
        if (backend if model_config.backend == "auto" else model_config.backend) == "unsloth":
            return UnslothTrainer(model_config, training_config, data_config, **options)
        return EnhancedTrainer(model_config, training_config, data_config, **options)


def num_processes_for(
    config: DeploymentConfig, device: torch.device, launch: LaunchedProcess | None = None
) -> int:
    """Return the number of training processes: those of the launcher, or `num_processes`.

    Raises:
        ConfigurationError: there are fewer GPUs than processes, or the launcher started another
            number.
    """
    requested = config.num_processes
    num_gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    if launch is not None:
        if requested not in (1, "auto", launch.size):
            raise ConfigurationError(
                "training.launcher_started_other_number", requested=requested, size=launch.size
            )
        return launch.size
    if requested == "auto":
        return max(1, num_gpus)
    if device.type == "cuda" and requested > num_gpus:
        raise ConfigurationError(
            "training.fewer_gpus_than_processes", requested=requested, num_gpus=num_gpus
        )
    return requested


def show_gpus(config: DeploymentConfig) -> None:
    """Restrict this process to the configured GPUs.

    This sets an environment variable that CUDA reads only once, before its first use.

    Raises:
        ConfigurationError: CUDA is already in use, or none of the GPUs exists.
    """
    _set_visible(config.cuda_visible_devices)
    if wants_gpus_by_number(config) and torch.cuda.device_count() == 0:
        raise ConfigurationError(no_such_gpu(config))


def _set_visible(devices: str | None) -> None:
    if devices is None or os.environ.get("CUDA_VISIBLE_DEVICES") == devices:
        return
    too_late = torch.cuda.is_initialized()
    if not too_late:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
        too_late = _num_gpus() > (len(devices.split(",")) if devices else 0)
    if too_late:
        raise ConfigurationError("training.visible_devices_too_late", devices=devices)


def _num_gpus() -> int:
    """Return the number of GPUs that CUDA finds, independent of the environment."""
    return int(torch._C._cuda_getDeviceCount()) if torch.cuda.is_available() else 0
