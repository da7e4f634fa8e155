"""What a training does about an error before it gives up."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Gt
from pydantic import Field

from infrastructure.config.base import ConfigSection
from infrastructure.config.types import SAME_RESULT, CountOrZero


class RecoveryConfig(ConfigSection):
    """One policy for each kind of error. Every recovery is written to `logs/errors/`."""

    prefix: ClassVar[str] = "training.recovery"

    out_of_memory: Annotated[Literal["smaller", "stop"], SAME_RESULT] = Field(
        default="smaller",
        description="Out of memory: do the same batch in smaller pieces, or stop.",
    )
    not_finite: Annotated[Literal["roll_back", "stop"], SAME_RESULT] = Field(
        default="roll_back",
        description="Loss or gradient not finite: back to the last good state and skip the batch.",
    )
    loss_spike: Annotated[Literal["roll_back", "note", "stop"], SAME_RESULT] = Field(
        default="note", description="A loss far above those before it: as not_finite, or a note."
    )
    loss_spike_factor: Annotated[float, Gt(1), SAME_RESULT] = Field(
        default=5.0, description="A loss above this multiple of the median before it is a spike."
    )
    max_rollbacks: Annotated[CountOrZero, SAME_RESULT] = Field(
        default=3,
        description="Bad losses that a training goes back from before it stops with the evidence.",
    )
    max_failed_saves: Annotated[CountOrZero, SAME_RESULT] = Field(
        default=2,
        description="Saves in a row that a disk may refuse before the training stops.",
    )
