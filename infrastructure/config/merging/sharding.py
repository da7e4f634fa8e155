"""Settings that cannot be combined with a model sharded over processes (`training.shard`)."""

from collections.abc import Iterator

from infrastructure.config.field_help import format_value
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import SFT, TrainingConfig
from infrastructure.core.messages import Setting, phrase

SPREADS = ("yes", "offload")
STRATEGIES = ("standard", "finetune")
ADAPTERS = ("auto", "standard", "dialogue")


def sharding_refusals(
    model: ModelConfig,
    training: TrainingConfig,
    *,
    has_others: bool,
    testing_interval: float | None = None,
) -> Iterator[str]:
    """Yield a message for each setting that a sharded model does not support, if one is requested.

    Args:
        has_others: whether several processes train.
    """
    if training.shard not in SPREADS:
        return
    name = Setting("training.shard", training.shard)
    if not has_others:
        yield (phrase("config.shard_on_one_process", name=name))
        return
    for reason in why_not_spread(model, training):
        yield phrase("config.setting_says", setting=name, reason=reason)
    if testing_interval is not None:
        yield (
            phrase(
                "config.shard_with_testing_interval",
                name=name,
                value=format_value(testing_interval),
                whole=_keep_whole(),
            )
        )


def why_not_spread(model: ModelConfig, training: TrainingConfig) -> Iterator[str]:
    """Yield each reason why this run keeps the whole model in each process, with a remedy."""
    yield from _formats(model, training)
    yield from _optimizers(training)
    strategy = training.strategy_for(model)
    if training.method != SFT:
        yield phrase("config.shard_with_trl_method", method=training.method)
    if strategy not in STRATEGIES:
        yield (phrase("config.shard_with_strategy", strategy=strategy, whole=_keep_whole()))
    if training.unfreeze_interval:
        yield (phrase("config.shard_with_unfreezing", whole=_keep_whole()))
    if training.extensions:
        yield (
            phrase(
                "config.shard_with_extensions",
                extensions=format_value(training.extensions),
                whole=_keep_whole(),
            )
        )
    if model.adapter not in ADAPTERS:
        yield (phrase("config.shard_with_adapter", adapter=model.adapter, whole=_keep_whole()))
    if training.best_needs_answers:
        yield (
            phrase(
                "config.shard_with_answer_metric",
                best_metric=training.best_metric,
                whole=_keep_whole(),
            )
        )
    if training.batch_size == "auto":
        yield (phrase("config.shard_with_auto_batch_size"))


def _formats(model: ModelConfig, training: TrainingConfig) -> Iterator[str]:
    if model.quantization is not None:
        yield (
            phrase(
                "config.shard_with_quantization",
                quantization=model.quantization,
                whole=_keep_whole(),
            )
        )
    if model.quantization_aware is not None:
        yield (phrase("config.shard_with_qat", whole=_keep_whole()))
    if model.backend == "unsloth":
        yield (phrase("config.shard_with_unsloth", whole=_keep_whole()))
    if training.compile_mode is not None:
        yield (phrase("config.shard_with_compile", compile_mode=training.compile_mode))
    if training.mixed_precision == "fp8":
        yield phrase("config.shard_with_fp8")


def _optimizers(training: TrainingConfig) -> Iterator[str]:
    if training.optimizer in ("adamw_8bit", "paged_adamw", "paged_adamw_8bit"):
        yield (
            phrase(
                "config.shard_with_8bit_optimizer",
                optimizer=training.optimizer,
                whole=_keep_whole(),
            )
        )
    elif training.optimizer == "adamw_offload":
        yield (phrase("config.shard_with_offloaded_adamw"))


def _keep_whole() -> str:
    return phrase("config.keep_whole")
