"""A trainer for models that Unsloth loads and patches.

Unsloth patches transformers on import, so it must come first. Create this trainer before anything
else imports transformers.
"""

import secrets
import time
from pathlib import Path
from typing import Any

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.errors import InputError
from infrastructure.data.defaults import make_ready
from infrastructure.models.refusals import refuse_pictures_by_unsloth
from infrastructure.models.registry import MODELS
from infrastructure.models.unsloth_backend import prepare_backend
from infrastructure.optimization.memory_prediction import MemoryBudget
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.loop.loop import TrainingLoop
from infrastructure.training.model_adapters import adapter_name
from infrastructure.training.setup.resource_limits import apply_resource_limits, caches_within


class UnslothTrainer(EnhancedTrainer):
    """An `EnhancedTrainer` whose model comes from Unsloth.

    Args:
        model_config: the model section, or a whole configuration, which supplies everything else.

    Raises:
        MissingPackageError: unsloth is not installed.
        ValueError: a section is given in addition to a whole configuration, or the configuration
            cannot be used.
    """

    def __init__(
        self,
        model_config: ModelConfig | DeploymentConfig,
        training_config: TrainingConfig | None = None,
        data_config: DataConfig | None = None,
        cache_config: CacheConfig | None = None,
        **options: Any,
    ) -> None:
        whole: DeploymentConfig | None = None
        if isinstance(model_config, DeploymentConfig):
            whole = model_config
            if training_config or data_config or cache_config:
                raise InputError("training.configuration_and_sections")
            make_ready(whole)
            whole.know_models(MODELS)
            training_config, data_config = whole.training, whole.data
            model_config = whole.model
            cache_config = caches_within(whole.cache, whole.memory)
            options = {**parts_of(whole), "memory_config": whole.memory, **options}
        model_config = model_config.model_copy(update={"backend": "unsloth"})
        if adapter_name(model_config, data_config) == "multimodal":
            refuse_pictures_by_unsloth()
        directory = cache_config.directory if cache_config else None
        prepare_backend(model_config, Path(directory) if directory else None)
        super().__init__(
            model_config,
            training_config or TrainingConfig(),
            data_config or DataConfig(),
            cache_config=cache_config,
            **options,
        )
        self.whole_config = whole
        if whole is not None:
            apply_resource_limits(self, whole)

    def prepare(self) -> TrainingLoop:
        loop = super().prepare()
        if self.whole_config is not None:
            self.whole_config.note_num_epochs(sum(phase.num_epochs for phase in loop.phases))
        return loop


def parts_of(config: DeploymentConfig) -> dict[str, object]:
    """Return keyword arguments for `EnhancedTrainer` from a whole configuration, besides its
    sections.

    They include a checkpoint folder for a custom loop.
    """
    return {
        "device": config.device,
        "memory_budget": MemoryBudget.of(config),
        "sections": config.sections_of_features(),
        "checkpoint_directory": own_loop_checkpoints(config),
    }


def own_loop_checkpoints(config: DeploymentConfig) -> Path:
    """Return a new folder that no other run uses; a store keeps only its newest checkpoints."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-own-loop-{secrets.token_hex(2)}"
    return Path(config.output_dir) / name / "checkpoints"
