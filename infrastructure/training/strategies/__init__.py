"""Training algorithms. A strategy yields phases and does a train step.

To add one: `STRATEGIES.register(name, class)` with a subclass of `TrainingStrategy`, or an entry
point in the group "temper.strategies".
"""

import logging

from infrastructure.config import registries
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.registry import Registry
from infrastructure.training.strategies.base_strategy import TrainingStrategy as TrainingStrategy
from infrastructure.training.strategies.finetune_strategy import (
    FinetuningStrategy as FinetuningStrategy,
)
from infrastructure.training.strategies.stackwise_strategy import (
    StackwiseStrategy as StackwiseStrategy,
)
from infrastructure.training.strategies.standard_strategy import (
    StandardTrainingStrategy as StandardTrainingStrategy,
)

STRATEGIES: Registry[type[TrainingStrategy]] = registries.STRATEGIES
STRATEGIES.register("standard", StandardTrainingStrategy)
STRATEGIES.register("finetune", FinetuningStrategy)
STRATEGIES.register("progressive", StackwiseStrategy)
STRATEGIES.register("end_to_end", StackwiseStrategy)


def get_training_strategy(
    name: str, training_config: TrainingConfig, logger: logging.Logger | None = None
) -> TrainingStrategy:
    """The strategy called `name`.

    Raises:
        ValueError: there is no such strategy; suggests the nearest one.
    """
    return STRATEGIES.get(name)(training_config, logger)
