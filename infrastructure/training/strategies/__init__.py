"""Training strategies. A strategy defines the phases of a run and its training step.

To add one: `register_strategy(name, class)` with a subclass of `TrainingStrategy`, an entry point
in the group "temper.strategies", or its address, `training.strategy: module:Class`.
"""

import logging
from collections.abc import Callable

from infrastructure.config import registries
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.features import plugins_of
from infrastructure.core.registry import Registry
from infrastructure.training.strategies.base_strategy import TrainingStrategy as TrainingStrategy
from infrastructure.training.strategies.finetune_strategy import (
    FinetuningStrategy as FinetuningStrategy,
)
from infrastructure.training.strategies.standard_strategy import (
    StandardTrainingStrategy as StandardTrainingStrategy,
)

STRATEGIES: Registry[Callable[..., TrainingStrategy]] = registries.STRATEGIES
STRATEGIES.provide(
    {
        "standard": StandardTrainingStrategy,
        "finetune": FinetuningStrategy,
    },
    TrainingStrategy,
)


def register_strategy(name: str, strategy: Callable[..., TrainingStrategy]) -> None:
    """Register a name for `training.strategy` that creates `strategy(training_config, logger)`.

    The registered strategy takes precedence over a built-in one of that name.

    Raises:
        ValueError: another user-defined strategy has the name, or `strategy` lacks a method.
    """
    STRATEGIES.register(name, strategy)


def get_training_strategy(
    name: str, training_config: TrainingConfig, logger: logging.Logger | None = None
) -> TrainingStrategy:
    """Create the strategy called `name`.

    Raises:
        ValueError: there is no such strategy (the message suggests the nearest one), or it cannot
            be used.
    """
    made: TrainingStrategy = STRATEGIES.make(name, training_config, logger)
    return made


def has_forms(name: str) -> bool:
    """Return whether the strategy belongs to a feature and changes the model's layers from phase to
    phase.
    """
    is_of_feature = name in plugins_of(STRATEGIES.group)
    return is_of_feature and getattr(STRATEGIES.get(name), "has_forms", False)
