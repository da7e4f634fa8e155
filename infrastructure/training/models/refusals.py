"""What a model's settings cannot be together, as far as it needs no PyTorch to say so.

Loads no torch; whatever loads the model looks at it again.
"""

from infrastructure.config.sections.model_config import EmbeddedModelConfig, ModelConfig
from infrastructure.core.optional import is_installed

GROUP_SIZE = 32  # weights of a row that share a scale, where training rounds them (torchao)
NO_WEIGHTS_TO_QUANTIZE = "has no trained weights to quantise"


def refuse_quantized_weights_that_train(config: ModelConfig, *, trains_lora: bool) -> None:
    """Raise ValueError where nothing is left to train, as quantised weights are frozen."""
    if config.quantization is not None and not trains_lora:
        raise ValueError(
            f"model.quantization={config.quantization!r} freezes the weights, so nothing would"
            " train: give model.lora_config too"
        )


def refuse_quantized_base(name: str) -> None:
    """Raise ValueError where weights that are quantised already are to be trained in full."""
    raise ValueError(
        f"model {name}: its weights are quantised already, and only what is not, a small part of"
        " it, would train: give model.lora_config (--lora), or the same model with plain weights"
    )


def refuse_without_effect(key: str, name: str, reason: str) -> None:
    """Raise ValueError for a setting of a model that has no use for it."""
    raise ValueError(f"model.{key}: model {name!r} {reason}; leave it out")


def refuse_pictures_by_unsloth() -> None:
    """Raise ValueError: Unsloth would load the language part alone."""
    raise ValueError(
        "model.backend=unsloth loads models of text here, and the training is on pictures: set"
        " model.backend=transformers"
    )


def refuse_flash_attention(attention: str | None, *, has_gpu: bool) -> None:
    """Raise ValueError where flash attention is wanted, and cannot be had."""
    if attention == "flash_attention_2" and not (has_gpu and is_installed("flash_attn")):
        raise ValueError(
            "model.attention='flash_attention_2' needs a GPU and `pip install flash-attn`;"
            " use 'sdpa'"
        )


def refuse_longer_examples(max_length: int, num_positions: int, name: str) -> None:
    """Raise ValueError where examples may be longer than what the model sees."""
    if max_length > num_positions:
        raise ValueError(
            f"data.max_length={max_length} is more than the {num_positions} positions of model"
            f" {name!r}; set it to {num_positions} or less"
        )


def refuse_odd_width_of_embedded(config: EmbeddedModelConfig) -> None:
    """Raise ValueError where the rows of the embedded model cannot be rounded in groups."""
    for name in ("hidden_size", "intermediate_size"):
        width = getattr(config, name)
        if width % GROUP_SIZE:
            wider = (width // GROUP_SIZE + 1) * GROUP_SIZE
            raise ValueError(
                f"model.quantization_aware rounds {GROUP_SIZE} weights of a row together, and"
                f" model.embedded.{name} is {width}: give a multiple of {GROUP_SIZE}, such as"
                f" {wider}, or leave model.quantization_aware out"
            )
