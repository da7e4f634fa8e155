"""The settings of the key-value memory that the extension `memory` adds to a model."""

from typing import Annotated, ClassVar

from annotated_types import Ge, Le
from pydantic import Field

from infrastructure.config.base import ConfigSection
from infrastructure.config.types import Allowed, Auto, Count, CountOrZero, UsedWhen

MEMORY = "memory"  # name of the extension


class MemorySettings(ConfigSection):
    """The position of the key-value memory in the model, and its size."""

    prefix: ClassVar[str] = "training.memory"
    help_note: ClassVar[str] = (
        "A key-value memory that {=training.enabled_extensions:memory} adds to the model: it reads"
        " trained keys and values (slots) and earlier tokens (the store) by cross-attention."
    )
    used_when: ClassVar[tuple[UsedWhen, ...]] = (
        UsedWhen(
            lambda config: config.training.enables(MEMORY),
            "key_value_memory.unused_no_memory_extension",
            "key_value_memory.unused_add_memory_extension",
        ),
    )

    layer: Annotated[
        Annotated[int, Ge(0), Le(10_000)] | Auto,
        Allowed('a whole number from 0, or "auto"'),
    ] = Field(
        default="auto",
        description="Layer after which the key-value memory is read, counted from 0; auto:"
        " the middle one.",
    )
    slots: Count = Field(
        default=64, description="Number of slots (trained keys and values) in the key-value memory."
    )
    heads: Count = Field(default=2, description="Attention heads that read the key-value memory.")
    width: Count | Auto = Field(
        default="auto",
        description="Width of the key-value memory; auto: the model's width, at most 128.",
    )
    store: CountOrZero = Field(
        default=1024,
        description="Size of the store: how many of the newest trained tokens it keeps;"
        " 0: no store.",
    )


class MemoryTraining(ConfigSection):
    """The field that the key-value memory adds to the training section."""

    prefix: ClassVar[str] = "training"

    memory: MemorySettings = Field(
        default=MemorySettings(), description="The key-value memory that the memory extension adds."
    )
