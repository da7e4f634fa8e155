"""Layer 4: the training system, with one training loop (`loop/loop.py`) and its trainers.

The names below can be imported from here. Each is loaded on first use.
"""

from infrastructure.core.features import merged
from infrastructure.core.lazy_exports import lazy_names

_PLACES = {
    "CheckpointManager": "infrastructure.training.checkpoints.checkpoint_manager",
    "DataConfig": "infrastructure.config.sections.data_config",
    "DeploymentConfig": "infrastructure.config.deployment_config",
    "EnhancedTrainer": "infrastructure.training.enhanced_trainer",
    "ExtensionManager": "infrastructure.training.extensions.extension_manager",
    "LoraConfig": "infrastructure.config.sections.model_config",
    "MemoryOptimizer": "infrastructure.optimization.memory_optimizer",
    "MetricsLogger": "infrastructure.training.metrics.metrics_logger",
    "ModelConfig": "infrastructure.config.sections.model_config",
    "PipelineOptimizer": "infrastructure.optimization.pipeline_optimizer",
    "StreamingDataset": "infrastructure.data.serving.streaming_dataset",
    "TemperCallback": "infrastructure.training.hf_bridge",
    "TrainerFactory": "infrastructure.training.trainer_factory",
    "TrainingConfig": "infrastructure.config.sections.training_config",
    "TrainingLoop": "infrastructure.training.loop.loop",
    "TrainingMonitor": "infrastructure.monitoring.training_monitor",
    "get_model_adapter": "infrastructure.training.model_adapters",
    "get_training_strategy": "infrastructure.training.strategies",
}

_PLACES |= merged("names")
__all__ = [*_PLACES]
__getattr__ = lazy_names(__name__, _PLACES, elsewhere=merged("instead"))


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
