"""From three sections of the configuration to the right trainer with the right parts."""

import logging
import os
from typing import Any

import torch

from infrastructure.config.data_config import DataConfig
from infrastructure.config.deployment_config import DeploymentConfig, check_sections
from infrastructure.config.layers import Layer
from infrastructure.config.model_config import ModelConfig
from infrastructure.config.section import ConfigurationError
from infrastructure.config.training_config import TrainingConfig
from infrastructure.optimization.memory_prediction import MemoryBudget
from infrastructure.training.data.samples import use_sample_data
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.machine_limits import fit_to_machine
from infrastructure.training.models.registry import MODELS
from infrastructure.training.unsloth_trainer import UnslothTrainer

PACKAGE = "infrastructure"  # the logger above all of ours; what other libraries log is not our say


class TrainerFactory:
    """Makes trainers; holds nothing."""

    def for_run(self, config: DeploymentConfig, **options: Any) -> EnhancedTrainer:
        """The trainer that a whole configuration asks for, on its device and with its cache.

        Raises:
            ConfigurationError: a sentence for each setting that cannot be carried out.
        """
        use_sample_data(config)
        config.check_supported()
        config.know_models(MODELS)
        show_gpus(config.cuda_visible_devices)
        if config.source("log_level").layer is not Layer.DEFAULT:
            logging.getLogger(PACKAGE).setLevel(config.log_level)
        trainer = self.create_trainer(
            config.model,
            config.training,
            config.data,
            device=config.device,
            cache_config=config.cache,
            memory_budget=MemoryBudget.of(config),
            **options,
        )
        fit_to_machine(trainer, config)
        return trainer

    def create_trainer(
        self,
        model_config: ModelConfig,
        training_config: TrainingConfig,
        data_config: DataConfig,
        **options: Any,
    ) -> EnhancedTrainer:
        """The trainer for `model_config.backend`; `options` are EnhancedTrainer's keywords.

        Raises:
            ConfigurationError: a sentence for each setting that cannot be carried out.
        """
        check_sections(model_config, training_config, data_config)
        if model_config.backend == "unsloth":
            return UnslothTrainer(model_config, training_config, data_config, **options)
        return EnhancedTrainer(model_config, training_config, data_config, **options)


def show_gpus(devices: str | None) -> None:
    """Let this process see these GPUs only; CUDA asks once, before it is used first.

    Raises:
        ConfigurationError: it is too late for that.
    """
    if devices is None or os.environ.get("CUDA_VISIBLE_DEVICES") == devices:
        return
    too_late = torch.cuda.is_initialized()
    if not too_late:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
        too_late = _num_gpus() > (len(devices.split(",")) if devices else 0)
    if too_late:
        raise ConfigurationError(
            f'cuda_visible_devices = "{devices}" cannot take effect any more, because this process '
            "has looked at its GPUs already: start it with the environment variable "
            f'CUDA_VISIBLE_DEVICES="{devices}"'
        )


def _num_gpus() -> int:
    """What CUDA itself sees; `torch.cuda.device_count` believes the variable."""
    return int(torch._C._cuda_getDeviceCount()) if torch.cuda.is_available() else 0
