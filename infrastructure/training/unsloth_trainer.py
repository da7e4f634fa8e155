"""UnslothTrainer: the same training, with a model that Unsloth loads and patches.

Unsloth changes transformers when it is imported, so it comes first: make this trainer before
anything else imports transformers.
"""

from pathlib import Path
from typing import Any

from infrastructure.config.data_config import DataConfig
from infrastructure.config.model_config import ModelConfig
from infrastructure.config.resource_config import CacheConfig
from infrastructure.config.training_config import TrainingConfig
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.models.unsloth_backend import prepare_backend


class UnslothTrainer(EnhancedTrainer):
    """An `EnhancedTrainer` whose model comes from Unsloth.

    Raises:
        MissingPackageError: unsloth is not installed.
    """

    def __init__(
        self,
        model_config: ModelConfig,
        training_config: TrainingConfig | None = None,
        data_config: DataConfig | None = None,
        cache_config: CacheConfig | None = None,
        **options: Any,
    ) -> None:
        model_config = model_config.model_copy(update={"backend": "unsloth"})
        directory = cache_config.directory if cache_config else None
        prepare_backend(model_config, Path(directory) if directory else None)
        super().__init__(
            model_config,
            training_config or TrainingConfig(),
            data_config or DataConfig(),
            cache_config=cache_config,
            **options,
        )
