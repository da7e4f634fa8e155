"""Settings that cannot be combined with a model sharded over processes (`training.shard`)."""

from collections.abc import Iterator
from types import SimpleNamespace

from infrastructure.config.merging.contradictions import (
    SHARDED,
    contradictions_in,
    with_rows_of_features,
)
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.messages import Setting, phrase

SPREADS = ("yes", "offload")


def sharding_refusals(
    model: ModelConfig, training: TrainingConfig, *, has_others: bool
) -> Iterator[str]:
    """If sharding is requested, yield an error for each setting that a sharded model does not
    support.

    Args:
        has_others: whether several processes train.
    """
    if training.shard not in SPREADS:
        return
    name = Setting("training.shard", training.shard)
    if not has_others:
        yield phrase("config.shard_on_one_process", name=name)
        return
    for reason in why_not_spread(model, training):
        yield phrase("config.setting_says", setting=name, reason=reason)


def why_not_spread(model: ModelConfig, training: TrainingConfig) -> Iterator[str]:
    """Yield each reason, with a remedy, why this run cannot shard the model over its processes."""
    table = with_rows_of_features(SHARDED, "sharded")
    return contradictions_in(table, SimpleNamespace(model=model, training=training))
