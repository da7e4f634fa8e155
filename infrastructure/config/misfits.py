"""Settings that are right by themselves and cannot hold together. Checked when a run starts."""

from collections.abc import Iterator

from infrastructure.config.data_config import DataConfig
from infrastructure.config.later import PARTS
from infrastructure.config.model_config import ModelConfig
from infrastructure.config.resolve import attention_for
from infrastructure.config.section import ConfigurationError
from infrastructure.config.training_config import TrainingConfig


def misfits(model: ModelConfig, data: DataConfig, training: TrainingConfig) -> Iterator[str]:
    """A sentence, with the remedy, for each contradiction between sections."""
    yield from _attention(model, training)
    yield from _unused_finetuning(training)
    yield from _longer_than_the_model_sees(model, data)


def several_gpus(cuda_visible_devices: str | None) -> Iterator[str]:
    """A sentence where more than one GPU is named: training uses one."""
    if "," in (cuda_visible_devices or ""):
        yield (
            f"cuda_visible_devices = {cuda_visible_devices} names several GPUs, and training on "
            f"more than one comes with {PARTS['C']}: name one"
        )


def _attention(model: ModelConfig, training: TrainingConfig) -> Iterator[str]:
    try:
        attention_for(model, training)
    except ConfigurationError as error:
        yield str(error)


def _unused_finetuning(training: TrainingConfig) -> Iterator[str]:
    if training.strategy != "standard":
        return
    for name, off in (("layerwise_lr_decay", 1.0), ("unfreeze_interval", None)):
        if getattr(training, name) != off:
            yield (
                f"training.{name} {getattr(training, name)} would be ignored by "
                "training.strategy standard: use finetune or auto"
            )


def _longer_than_the_model_sees(model: ModelConfig, data: DataConfig) -> Iterator[str]:
    longest = model.embedded.max_positions
    if model.name == "embedded" and data.max_length > longest:
        yield (
            f"data.max_length {data.max_length} is more than the embedded model can see: "
            f"raise model.embedded.max_positions ({longest}) or lower data.max_length"
        )
