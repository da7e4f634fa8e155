"""Settings that cannot be combined with a vision encoder on a text model."""

from collections.abc import Iterator

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.multimodal_config import MULTIMODAL
from infrastructure.config.sections.training_config import SFT, TrainingConfig
from infrastructure.core.messages import Setting, phrase


def vision_tower_refusals(model: ModelConfig, training: TrainingConfig) -> Iterator[str]:
    """Yield a message for each setting that is incompatible with such a vision encoder."""
    if not training.enables(MULTIMODAL):
        return
    enabled = Setting("training.enabled_extensions", MULTIMODAL)
    if training.multimodal.vision_tower is None:
        yield phrase("config.vision_encoder_not_set")
    if model.name == "embedded":
        yield (phrase("config.vision_encoder_on_new_model", enabled=enabled))
    if model.quantization is not None or model.quantization_aware is not None:
        name = "quantization" if model.quantization is not None else "quantization_aware"
        setting = Setting(f"model.{name}", getattr(model, name))
        yield phrase("config.vision_encoder_needs_full_weights", setting=setting, enabled=enabled)
    if model.backend == "unsloth":
        yield (phrase("config.vision_encoder_with_unsloth", enabled=enabled))
    if training.method != SFT:
        yield (
            phrase("config.vision_encoder_with_trl_method", enabled=enabled, method=training.method)
        )
    if model.adapter not in ("auto", MULTIMODAL):
        yield (phrase("config.adapter_without_images", adapter=model.adapter, enabled=enabled))
    if training.train_extensions_only:
        yield (phrase("config.extensions_only_with_projector", enabled=enabled))
    strategy = training.strategy_for(model)
    if strategy not in ("standard", "finetune"):
        yield (phrase("config.strategy_with_projector_phase", strategy=strategy, enabled=enabled))
