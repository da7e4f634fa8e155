"""What cannot be together with a model that is spread over processes (`training.shard`)."""

from collections.abc import Iterator

from infrastructure.config.field_help import format_value
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import SFT, TrainingConfig

SPREADS = ("yes", "offload")
STRATEGIES = ("standard", "finetune")
ADAPTERS = ("auto", "standard", "dialogue")
WHOLE = "set training.shard no, which keeps all of the model in each process"


def sharding_refusals(
    model: ModelConfig,
    training: TrainingConfig,
    *,
    has_others: bool,
    testing_interval: float | None = None,
) -> Iterator[str]:
    """A sentence for each setting that a spread model cannot take, where one was asked for.

    Args:
        has_others: several processes train.
    """
    if training.shard not in SPREADS:
        return
    name = f"training.shard = {training.shard}"
    if not has_others:
        yield (
            f"{name} has no effect, because one process trains: give num_processes 2 or more, or"
            " leave it out"
        )
        return
    for reason in why_not_spread(model, training):
        yield f"{name}: {reason}"
    if testing_interval is not None:
        yield (
            f"{name}: testing_interval = {format_value(testing_interval)} checks on one process"
            f" what all compute together: leave it out, or {WHOLE}"
        )


def why_not_spread(model: ModelConfig, training: TrainingConfig) -> Iterator[str]:
    """Why this training keeps all of the model in each process, and what to do instead."""
    yield from _formats(model, training)
    yield from _optimizers(training)
    strategy = training.strategy_for(model)
    if training.method != SFT:
        yield f"training.method = {training.method} is trained by TRL's own trainer: leave it out"
    if strategy not in STRATEGIES:
        yield (
            f"training.strategy = {strategy} may compute with parts of the model, or change what"
            f" trains, and a spread model is one whole: use standard or finetune, or {WHOLE}"
        )
    if training.unfreeze_interval:
        yield (
            "training.unfreeze_interval changes in the middle what trains, which a spread model"
            f" has fixed: leave it out, or {WHOLE}"
        )
    if training.extensions:
        yield (
            f"training.enabled_extensions = {format_value(training.extensions)} read or change"
            f" whole weights and gradients in one process: leave them out, or {WHOLE}"
        )
    if model.adapter not in ADAPTERS:
        yield (
            f"model.adapter = {model.adapter} has a model whose parts are not known: use standard,"
            f" or {WHOLE}"
        )
    if training.best_needs_answers:
        yield (
            f"training.best_metric = {training.best_metric} is of what the model writes, and one"
            f" process has no whole model to write with: choose eval_loss, or {WHOLE}"
        )
    if training.batch_size == "auto":
        yield (
            "training.batch_size = auto is measured with all of the training in one process: give"
            " a number"
        )


def _formats(model: ModelConfig, training: TrainingConfig) -> Iterator[str]:
    if model.quantization is not None:
        yield (
            f"model.quantization = {model.quantization} cannot be spread: what describes the"
            " weights of bitsandbytes stays behind, and kept as bf16 they come back changed without"
            f" a word: leave it out, or {WHOLE}"
        )
    if model.quantization_aware is not None:
        yield (
            "model.quantization_aware rounds whole weights, and each process has a part: leave it"
            f" out, or {WHOLE}"
        )
    if model.backend == "unsloth":
        yield (
            f"model.backend = unsloth patches layers that are whole: use transformers, or {WHOLE}"
        )
    if training.compile_mode is not None:
        yield (
            f"training.compile_mode = {training.compile_mode} was never shown with a spread model:"
            " leave it out"
        )
    if training.mixed_precision == "fp8":
        yield "training.mixed_precision = fp8 was never shown with a spread model: use bf16"


def _optimizers(training: TrainingConfig) -> Iterator[str]:
    if training.optimizer in ("adamw_8bit", "paged_adamw", "paged_adamw_8bit"):
        yield (
            f"training.optimizer = {training.optimizer} of bitsandbytes reads beyond the part of a"
            f" weight that a process has: use adamw, or {WHOLE}"
        )
    elif training.optimizer == "adamw_offload":
        yield (
            "training.optimizer = adamw_offload moves whole weights to main memory: use adamw with"
            " training.shard offload, which moves each part"
        )
