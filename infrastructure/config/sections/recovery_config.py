"""The settings of error recovery: how a run reacts to an error before it gives up."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from infrastructure.config.base import ConfigSection
from infrastructure.config.types import SAME_RESULT


class RecoveryConfig(ConfigSection):
    """The settings of how a run reacts to each kind of error, which is logged in `logs/errors/`."""

    prefix: ClassVar[str] = "training.recovery"

    out_of_memory: Annotated[Literal["smaller", "stop"], SAME_RESULT] = Field(
        default="smaller",
        description="If memory runs out: redo the same batch in smaller pieces, or stop.",
    )
    not_finite: Annotated[Literal["roll_back", "stop"], SAME_RESULT] = Field(
        default="roll_back",
        description="If the loss or gradient is NaN or infinite: roll back and skip the"
        " batch, or stop.",
    )
    loss_spike: Annotated[Literal["roll_back", "note", "stop"], SAME_RESULT] = Field(
        default="note",
        description="If the loss jumps up: roll back and skip the batch, only report it"
        " (note), or stop.",
    )
