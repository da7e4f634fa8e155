"""The key-value memory that the extension `memory` adds to a model."""

from typing import Annotated, ClassVar

from annotated_types import Ge, Le
from pydantic import Field

from infrastructure.config.base import ConfigSection
from infrastructure.config.types import Allowed, Auto, Count, CountOrZero, UsedWhen

MEMORY = "memory"  # the extension


class MemorySettings(ConfigSection):
    """Its place in the model, and its size."""

    prefix: ClassVar[str] = "training.memory"
    used_when: ClassVar[tuple[UsedWhen, ...]] = (
        UsedWhen(
            lambda config: config.training.enables(MEMORY),
            "config.unused_no_memory_extension",
            "config.unused_add_memory_extension",
        ),
    )

    layer: Annotated[
        Annotated[int, Ge(0), Le(10_000)] | Auto,
        Allowed('a whole number from 0, or "auto"'),
    ] = Field(
        default="auto",
        description="Layer after which the memory is read, from 0; auto: the one in the middle.",
    )
    slots: Count = Field(default=64, description="Keys and values that are weights, and trained.")
    heads: Count = Field(default=2, description="Heads of the attention that reads the memory.")
    width: Count | Auto = Field(
        default="auto", description="Width of its keys and values; auto: the model's, at most 128."
    )
    store: CountOrZero = Field(
        default=1024,
        description="Learnt tokens of rows seen that it keeps and reads; 0: slots alone.",
    )
