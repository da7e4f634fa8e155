"""Settings of a curriculum, and the combinations of settings that are rejected."""

from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le
from pydantic import Field

from infrastructure.config.base import ConfigSection
from infrastructure.config.registries import STRATEGIES
from infrastructure.config.types import Allowed, EachOnce, SplitCommas, UsedWhen

CURRICULUM = "curriculum"  # the strategy
_IS_CURRICULUM = f"training.strategy={CURRICULUM}"
CONTRADICTIONS = (
    ("curriculum.with_streaming", _IS_CURRICULUM, "data.streaming"),
    ("curriculum.with_early_stopping", _IS_CURRICULUM, "training.early_stopping_patience"),
    (
        "curriculum.without_tasks",
        _IS_CURRICULUM,
        "training.curriculum_by=task",
        "not several_tasks",
    ),
    ("curriculum.trains_layers_alike", _IS_CURRICULUM, "not training.layerwise_lr_decay=1.0"),
)


def _is_curriculum(config: Any) -> bool:
    """Return whether the strategy uses curriculum settings: it is a curriculum or user-defined."""
    name = config.training.strategy
    return name == CURRICULUM or name not in ("auto", *STRATEGIES.built_in)


_IN_STAGES = UsedWhen(_is_curriculum, "curriculum.unused_not_curriculum")
_BY_RANK = UsedWhen(
    lambda config: _is_curriculum(config) and config.training.curriculum_by != "task",
    "curriculum.unused_tasks_are_stages",
)
_BY_TASK = UsedWhen(
    lambda config: _is_curriculum(config) and config.training.curriculum_by == "task",
    "curriculum.unused_not_by_task",
    "curriculum.unused_set_by_task",
)


class CurriculumTraining(ConfigSection):
    """The curriculum fields of the training section."""

    prefix: ClassVar[str] = "training"

    curriculum_stages: Annotated[
        int,
        Ge(2),
        Le(100),
        Allowed("a whole number from 2 to 100"),
        _BY_RANK,
    ] = Field(
        default=3,
        description="Curriculum stages, each with more of the data; {=training.num_epochs} is"
        " per stage.",
    )
    curriculum_by: Annotated[Literal["length", "loss", "task"], _IN_STAGES] = Field(
        default="length",
        description="Start with short rows (length), rows of low initial loss (loss), or the first"
        " task (task).",
    )
    curriculum_order: Annotated[
        list[str],
        SplitCommas,
        EachOnce,
        Allowed("a list of at least two tasks, each once"),
        _BY_TASK,
    ] = Field(
        default=[],
        description="Values of {=data.task_column}, from easy to hard; each is a curriculum stage.",
    )
    curriculum_keeps_easier: Annotated[bool, _IN_STAGES] = Field(
        default=True,
        description="Also train each curriculum stage on the rows of the earlier stages.",
    )


def has_several_tasks(config: Any) -> bool:
    """Return whether `curriculum_order` names at least two tasks."""
    return len(config.training.curriculum_order) > 1
