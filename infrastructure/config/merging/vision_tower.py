"""What cannot be together with a vision tower on a model of text."""

from collections.abc import Iterator

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.multimodal_config import MULTIMODAL
from infrastructure.config.sections.training_config import SFT, TrainingConfig
from infrastructure.core.messages import Setting, phrase


def vision_tower_refusals(model: ModelConfig, training: TrainingConfig) -> Iterator[str]:
    """A sentence for each setting that a vision tower on a model of text cannot go with."""
    if not training.enables(MULTIMODAL):
        return
    enabled = Setting("training.enabled_extensions", MULTIMODAL)
    if training.multimodal.vision_tower is None:
        yield phrase("config.training_enabled_extensions_multimodal")
    if model.name == "embedded":
        yield (phrase("config.puts_vision_tower_trained", enabled=enabled))
    if model.quantization is not None or model.quantization_aware is not None:
        name = "quantization" if model.quantization is not None else "quantization_aware"
        yield (phrase("config.model_model_puts_together", name=name, enabled=enabled))
    if model.backend == "unsloth":
        yield (phrase("config.model_backend_unsloth_loads", enabled=enabled))
    if training.method != SFT:
        yield (phrase("config.trains_temper_own_loop", enabled=enabled, method=training.method))
    if model.adapter not in ("auto", MULTIMODAL):
        yield (
            phrase("config.model_adapter_pictures_trains", adapter=model.adapter, enabled=enabled)
        )
    if training.train_extensions_only:
        yield (phrase("config.training_train_extensions_trains", enabled=enabled))
    strategy = training.strategy_for(model)
    if strategy not in ("standard", "finetune"):
        yield (phrase("config.training_strategy_phases_own", strategy=strategy, enabled=enabled))
