"""`UnifiedTrainer`, an alias that the specification requires."""

from infrastructure.config.sections.training_config import TrainingConfig as TrainingConfig
from infrastructure.core.features import merged
from infrastructure.core.lazy_exports import lazy_names

__getattr__ = lazy_names(__name__, merged("names"))
