"""Settings of a curriculum, and the combinations of settings that are rejected."""

from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le
from pydantic import Field

from infrastructure.config.base import ConfigSection
from infrastructure.config.registries import STRATEGIES
from infrastructure.config.types import Allowed, UsedWhen

CURRICULUM = "curriculum"  # the strategy
_IS_CURRICULUM = f"training.strategy={CURRICULUM}"
CONTRADICTIONS = (
    ("curriculum.with_streaming", _IS_CURRICULUM, "data.streaming"),
    ("curriculum.with_early_stopping", _IS_CURRICULUM, "training.early_stopping_patience"),
    ("curriculum.trains_layers_alike", _IS_CURRICULUM, "not training.layerwise_lr_decay=1.0"),
)


def _is_curriculum(config: Any) -> bool:
    """Return whether the strategy uses curriculum settings: it is a curriculum or user-defined."""
    name = config.training.strategy
    return name == CURRICULUM or name not in ("auto", *STRATEGIES.built_in)


_IN_STAGES = UsedWhen(_is_curriculum, "curriculum.unused_not_curriculum")


class CurriculumTraining(ConfigSection):
    """The curriculum fields of the training section."""

    prefix: ClassVar[str] = "training"

    curriculum_stages: Annotated[
        int,
        Ge(2),
        Le(100),
        Allowed("a whole number from 2 to 100"),
        _IN_STAGES,
    ] = Field(
        default=3,
        description="Curriculum stages, each with more of the data; {=training.num_epochs} is"
        " per stage.",
    )
    curriculum_by: Annotated[Literal["length", "loss"], _IN_STAGES] = Field(
        default="length",
        description="Start with short rows (length) or rows of low initial loss (loss).",
    )
