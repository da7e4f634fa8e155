"""The setting of quantization-aware training."""

from typing import ClassVar, Literal

from pydantic import Field

from infrastructure.config.base import ConfigSection


class QuantizationAwareModel(ConfigSection):
    """The field of quantization-aware training in the model section."""

    prefix: ClassVar[str] = "model"

    quantization_aware: Literal["int4", "int8_int4"] | None = Field(
        default=None,
        description="Quantization-aware training; int4: 4-bit weights; int8_int4: also"
        " 8-bit activations.",
    )
