"""Settings that cannot be combined with extensions that add weights to the model."""

from collections.abc import Collection, Iterator
from types import SimpleNamespace

from infrastructure.config.merging.contradictions import (
    ADDED_WEIGHTS,
    ADDING_EXTENSION,
    contradictions_in,
    with_rows_of_features,
)
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.messages import Setting, phrase


def added_weights_refusals(
    names: Collection[str], model: ModelConfig, training: TrainingConfig
) -> Iterator[str]:
    """Yield an error, with the remedy, for each setting that is incompatible with added weights.

    Args:
        names: the enabled extensions that add weights.
    """
    if names:
        key = Setting("training.enabled_extensions", ",".join(names))
        sections = SimpleNamespace(model=model, training=training)
        table = with_rows_of_features(ADDING_EXTENSION, "added_weights")
        yield from contradictions_in(table, sections, key=key)


def saved_weights_refusals(
    names: Collection[str], model: ModelConfig, training: TrainingConfig
) -> Iterator[str]:
    """Yield an error, with the remedy, for each setting that is incompatible with a saved model.

    The saved model has weights that extensions added, but these extensions are not enabled now.

    Args:
        names: the kinds of added weights in the saved model.
    """
    if names:
        key = f"{', '.join(names)} in model {model.name}"
        sections = SimpleNamespace(model=model, training=training)
        table = with_rows_of_features(ADDED_WEIGHTS, "added_weights")
        yield from contradictions_in(table, sections, key=key)


def on_several_processes(names: Collection[str], num_processes: object) -> str:
    """Return the error for extensions that add weights, in a run with several processes."""
    return phrase("config.added_weights_on_processes", count=num_processes, names=", ".join(names))
