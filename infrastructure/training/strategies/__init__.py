"""Training algorithms. A strategy yields phases and does a train step.

To add one: a subclass of `TrainingStrategy` in a file here, and one line in `STRATEGIES`.
"""

import logging

from infrastructure.config.training_config import TrainingConfig
from infrastructure.core.lookup import look_up
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

STRATEGIES: dict[str, type[TrainingStrategy]] = {
    "standard": StandardTrainingStrategy,
    "finetune": FinetuningStrategy,
    "progressive": StackwiseStrategy,
    "end_to_end": StackwiseStrategy,
}


def get_training_strategy(
    name: str, training_config: TrainingConfig, logger: logging.Logger | None = None
) -> TrainingStrategy:
    """The strategy called `name`.

    Raises:
        ValueError: there is no such strategy; suggests the nearest one.
    """
    return look_up("training strategy", name, STRATEGIES)(training_config, logger)
