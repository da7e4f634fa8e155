"""Settings of distillation."""

from typing import Annotated, ClassVar

from pydantic import Field

from infrastructure.config.base import ConfigSection
from infrastructure.config.types import PathText, UsedWhen


class DistillationTraining(ConfigSection):
    """The field of distillation in the training section."""

    prefix: ClassVar[str] = "training"

    teacher: Annotated[
        PathText | None,
        UsedWhen(
            lambda config: config.training.method == "distillation",
            "distillation.unused_without_teacher",
        ),
    ] = Field(default=None, description="Teacher model for distillation: a folder or a Hub name.")
