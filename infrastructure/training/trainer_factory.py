"""From three sections of the configuration to the right trainer with the right parts."""

from typing import Any

from infrastructure.config.data_config import DataConfig
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.model_config import ModelConfig
from infrastructure.config.training_config import TrainingConfig
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.unsloth_trainer import UnslothTrainer


class TrainerFactory:
    """Makes trainers; holds nothing."""

    def for_run(self, config: DeploymentConfig, **options: Any) -> EnhancedTrainer:
        """The trainer that a whole configuration asks for, on its device and with its cache."""
        return self.create_trainer(
            config.model,
            config.training,
            config.data,
            device=config.device,
            cache_config=config.cache,
            **options,
        )

    def create_trainer(
        self,
        model_config: ModelConfig,
        training_config: TrainingConfig,
        data_config: DataConfig,
        **options: Any,
    ) -> EnhancedTrainer:
        """The trainer for `model_config.backend`; `options` are EnhancedTrainer's keywords."""
        if model_config.backend == "unsloth":
            return UnslothTrainer(model_config, training_config, data_config, **options)
        return EnhancedTrainer(model_config, training_config, data_config, **options)
