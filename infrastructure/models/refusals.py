"""Checks of a model's settings that can run before PyTorch is imported.

The code that loads the model repeats the checks.
"""

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.core.errors import InputError
from infrastructure.core.messages import Setting
from infrastructure.core.optional import is_installed


def refuse_quantized_weights_that_train(config: ModelConfig, *, trains_lora: bool) -> None:
    """Raise ValueError if a model is quantized but would be trained without LoRA."""
    if config.quantization is not None and not trains_lora:
        raise InputError("models.quantized_without_lora", quantization=config.quantization)


def refuse_quantized_base(name: str) -> None:
    """Raise ValueError with the message that quantized weights cannot be fully fine-tuned."""
    raise InputError("models.quantized_full_fine_tuning", name=name)


def refuse_without_effect(key: str, name: str, reason: str) -> None:
    """Raise ValueError with the message that a setting has no effect on a certain model."""
    raise InputError(
        "models.setting_no_effect", key=Setting(f"model.{key}"), name=name, reason=reason
    )


def refuse_pictures_by_unsloth() -> None:
    """Raise ValueError with the message that Unsloth would load only the language part."""
    raise InputError("models.unsloth_with_images")


def refuse_flash_attention(attention: str | None, *, has_gpu: bool) -> None:
    """Raise ValueError if flash attention is set but not available."""
    if attention == "flash_attention_2" and not (has_gpu and is_installed("flash_attn")):
        raise InputError("models.flash_attention_unavailable")


def refuse_longer_examples(max_length: int, num_positions: int, name: str) -> None:
    """Raise ValueError if examples may be longer than the number of positions of the model."""
    if max_length > num_positions:
        raise InputError(
            "models.max_length_beyond_positions",
            max_length=max_length,
            num_positions=num_positions,
            name=name,
        )
