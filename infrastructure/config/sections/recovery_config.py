"""What a training does about an error before it gives up."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Gt
from pydantic import Field

from infrastructure.config.base import Section
from infrastructure.config.types import CountOrZero


class RecoveryConfig(Section):
    """One policy for each kind of error. Every recovery is written to `logs/errors/`."""

    prefix: ClassVar[str] = "training.recovery"

    out_of_memory: Literal["smaller", "stop"] = Field(
        default="smaller",
        description="Out of memory: do the same batch in smaller pieces, or stop.",
    )
    not_finite: Literal["roll_back", "stop"] = Field(
        default="roll_back",
        description="Loss or gradient not finite: back to the last good state and skip the batch.",
    )
    loss_spike: Literal["roll_back", "note", "stop"] = Field(
        default="note", description="A loss far above those before it: as not_finite, or a note."
    )
    loss_spike_factor: Annotated[float, Gt(1)] = Field(
        default=5.0, description="A loss above this multiple of the median before it is a spike."
    )
    max_rollbacks: CountOrZero = Field(
        default=3,
        description="Bad losses that a training goes back from before it stops with the evidence.",
    )
    max_failed_saves: CountOrZero = Field(
        default=2,
        description="Saves in a row that a disk may refuse before the training stops.",
    )
