"""A trainer for models that Unsloth loads and patches.

Unsloth patches transformers on import, so it must come first. Create this trainer before anything
else imports transformers.
"""

from pathlib import Path
from typing import Any

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.models.refusals import refuse_pictures_by_unsloth
from infrastructure.models.unsloth_backend import prepare_backend
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.model_adapters import adapter_name


class UnslothTrainer(EnhancedTrainer):
    """An `EnhancedTrainer` whose model Unsloth loads.

    Raises:
        MissingPackageError: unsloth is not installed.
        ValueError: the configuration cannot be used.
    """

    def __init__(
        self,
        model_config: ModelConfig,
        training_config: TrainingConfig,
        data_config: DataConfig,
        cache_config: CacheConfig | None = None,
        **options: Any,
    ) -> None:
        model_config = model_config.model_copy(update={"backend": "unsloth"})
        if adapter_name(model_config, data_config) == "multimodal":
            refuse_pictures_by_unsloth()
        directory = cache_config.directory if cache_config else None
        prepare_backend(model_config, Path(directory) if directory else None)
        super().__init__(
            model_config, training_config, data_config, cache_config=cache_config, **options
        )
