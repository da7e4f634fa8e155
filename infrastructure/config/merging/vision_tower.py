"""What cannot be together with a vision tower on a model of text."""

from collections.abc import Iterator

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.multimodal_config import MULTIMODAL
from infrastructure.config.sections.training_config import SFT, TrainingConfig

NO_TOWER = (
    "training.enabled_extensions multimodal puts a vision tower on a model of text, and"
    " training.multimodal.vision_tower names none: give a folder or a hub name, such as"
    " google/siglip-base-patch16-224"
)


def vision_tower_refusals(model: ModelConfig, training: TrainingConfig) -> Iterator[str]:
    """A sentence for each setting that a vision tower on a model of text cannot go with."""
    if not training.enables(MULTIMODAL):
        return
    enabled = "training.enabled_extensions multimodal"
    if training.multimodal.vision_tower is None:
        yield NO_TOWER
    if model.name == "embedded":
        yield (
            f"{enabled} puts a vision tower on a trained model of text, and the embedded model is"
            " new and random: name a trained one as model.name"
        )
    if model.quantization is not None or model.quantization_aware is not None:
        name = "quantization" if model.quantization is not None else "quantization_aware"
        yield (
            f"model.{name}: the model that {enabled} puts together is saved with what was trained,"
            " and that needs its weights as they were: leave it out; the finished model can be"
            " trained with it"
        )
    if model.backend == "unsloth":
        yield (
            f"model.backend=unsloth loads models of text here, and {enabled} makes one that sees:"
            " set model.backend=transformers"
        )
    if training.method != SFT:
        yield (
            f"{enabled} trains by Temper's own loop, and training.method = {training.method} is a"
            " trainer of TRL: leave one of them out"
        )
    if model.adapter not in ("auto", MULTIMODAL):
        yield (
            f"model.adapter={model.adapter} is not one for pictures, which {enabled} trains on:"
            " leave model.adapter out"
        )
    if training.train_extensions_only:
        yield (
            f"training.train_extensions_only: {enabled} trains the projector alone in the epochs of"
            " training.multimodal.projector_epochs: leave it out, and give those"
        )
    strategy = training.strategy_for(model)
    if strategy not in ("standard", "finetune"):
        yield (
            f"training.strategy = {strategy} has phases of its own, and {enabled} trains its"
            " projector first: use standard or finetune"
        )
