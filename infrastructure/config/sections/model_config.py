"""The settings of the model: which one is trained and how it is loaded. No model is loaded."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from infrastructure.config.base import ConfigSection, ConfigurationError, with_fields_of_features
from infrastructure.config.registries import ADAPTERS
from infrastructure.config.types import (
    Allowed,
    Count,
    PathText,
    Positive,
    RegisteredName,
    ShareBelowOne,
    UsedWhen,
)
from infrastructure.core.comma_list import split_items

_EMBEDDED = UsedWhen(
    lambda config: config.model.name == "embedded",
    "config.unused_shapes_embedded_model",
)
_NOT_EMBEDDED = UsedWhen(
    lambda config: config.model.name != "embedded", "config.unused_embedded_model_has_no_code"
)


def _modules(value: object) -> object:
    """Split a comma-separated text into module names, unless it is "all-linear"."""
    if not isinstance(value, str) or value == "all-linear":
        return value
    return split_items(value)


class LoraConfig(ConfigSection):
    """The settings of LoRA (PEFT), which trains small matrices and freezes the model."""

    prefix: ClassVar[str] = "model.lora_config"

    r: Count = Field(default=16, description="Rank of the LoRA matrices.")
    alpha: Positive = Field(
        default=32, description="LoRA scaling: the update is multiplied by alpha / r."
    )
    dropout: ShareBelowOne = Field(default=0.0, description="Dropout before the LoRA matrices.")
    target_modules: Annotated[
        Literal["all-linear"] | list[str],
        BeforeValidator(_modules),
        Allowed('"all-linear" or a list of module names such as "q_proj,v_proj"'),
    ] = Field(
        default="all-linear",
        description="Linear layers that get LoRA matrices.",
    )
    use_dora: bool = Field(
        default=False, description="Use DoRA: also train the magnitude of each weight row."
    )
    use_rslora: bool = Field(
        default=False, description="Use rsLoRA: scale by alpha / sqrt(r), for high ranks."
    )


def variants_of(lora: LoraConfig) -> dict[str, bool]:
    """Return field name → whether it is on, for LoRA variants that only PEFT supports."""
    return {
        "use_dora": lora.use_dora,
        "use_rslora": lora.use_rslora,
    }


class EmbeddedModelConfig(ConfigSection):
    """The shape of the Llama-style model that is built from scratch, without a download."""

    prefix: ClassVar[str] = "model.embedded"
    help_note: ClassVar[str] = (
        "The small model that is trained from scratch with {=model.name:embedded}."
    )
    used_when: ClassVar[tuple[UsedWhen, ...]] = (_EMBEDDED,)

    hidden_size: Count = Field(
        default=128, description="Width of the embedded model's residual stream."
    )
    num_layers: Count = Field(
        default=4, description="Number of decoder layers of the embedded model."
    )
    num_heads: Count = Field(
        default=4,
        description="Attention heads of the embedded model; twice this number must divide its"
        " width.",
    )
    intermediate_size: Count = Field(
        default=336, description="Width of the embedded model's gated MLP."
    )
    vocab_size: Count = Field(
        default=1024,
        description="Vocabulary size of the tokenizer that is trained on the data for the"
        " embedded model.",
    )
    max_positions: Count = Field(
        default=512, description="Longest sequence that the embedded model supports, in tokens."
    )

    def check_together(self) -> None:
        if self.hidden_size % (2 * self.num_heads):
            raise ConfigurationError(
                "config.hidden_size_not_divisible",
                hidden_size=self.hidden_size,
                num_heads=self.num_heads,
            )


if TYPE_CHECKING:  # the core reads no field of a feature
    FieldsOfFeatures = ConfigSection
else:
    FieldsOfFeatures = with_fields_of_features("model")


class ModelConfig(FieldsOfFeatures):
    """The settings of the model and of how it is loaded, as used by `ModelManager`."""

    prefix: ClassVar[str] = "model"
    help_note: ClassVar[str] = (
        "{=model.adapter} says what the rows are. standard: text. dialogue: conversations, with"
        " separate metrics for later answers. multimodal: texts with images. tactical_mappo: only"
        " for the example model of that name, which learns a small game without data."
        " auto: multimodal if"
        " the rows have images, and standard if not."
    )

    name: PathText = Field(
        default="embedded",
        description="Model to train: a folder, a Hub name or a registered name;"
        " embedded: small, from scratch.",
    )
    backend: Literal["auto", "transformers", "unsloth"] = Field(
        default="auto",
        description="Library to load the model; auto: Unsloth if it supports GPU and"
        " model, else transformers.",
    )
    adapter: Annotated[
        str,
        RegisteredName(ADAPTERS, ("auto",), is_late=True),
    ] = Field(
        default="auto",
        description="Kind of input; standard: text; dialogue: chats; multimodal:"
        " images; auto: as in the data.",
    )
    train_vision: bool = Field(
        default=False,
        description="Also train the vision encoder of a vision-language model.",
    )
    quantization: Literal["4bit", "8bit"] | None = Field(
        default=None, description="Load the base weights in 4 or 8 bits (bitsandbytes)."
    )
    lora_config: LoraConfig | None = Field(
        default=None,
        description="Train LoRA adapters and freeze the model's own weights; off: full"
        " fine-tuning.",
    )
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        default="auto", description="Precision in which the weights are stored in memory."
    )
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = Field(
        default="auto", description="Attention implementation; auto: the fastest one available."
    )
    trust_remote_code: Annotated[bool, _NOT_EMBEDDED] = Field(
        default=False,
        description="Run Python code that comes with a model; only for models that you trust.",
    )
    revision: str | None = Field(default=None, description="Branch, tag or commit of a Hub model.")
    embedded: EmbeddedModelConfig = Field(
        default=EmbeddedModelConfig(), description="Shape of the embedded model."
    )
