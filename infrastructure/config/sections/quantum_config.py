"""What the quantum step asks, how much of it, and what it may cost. Who answers is told in
`resources.quantum`."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Gt, Le
from pydantic import Field

from infrastructure.config.base import Section
from infrastructure.config.types import Allowed, Auto, Count, ShareAboveZero

DATA_SELECTION, BLOCK_SELECTION, RANK_ALLOCATION = (
    "data_selection",
    "block_selection",
    "rank_allocation",
)
SAMPLER = "sampler"  # who answers, where no plain answer was chosen
# The plain answers to each question.
BASELINES = {
    DATA_SELECTION: (
        *("greedy_and_exchange", "greedy", "deduplicate_then_top", "top_relevance", "random"),
    ),
    BLOCK_SELECTION: ("gradient_norm", "first_order", "random", "cyclic", "top"),
    RANK_ALLOCATION: ("diagonal_fisher", "sensitivity", "random"),
}
# What a setting of this section is about; one that is not named is about all of them.
ASKED_BY = {
    "data_budget": DATA_SELECTION,
    "target": DATA_SELECTION,
    "candidates": DATA_SELECTION,
    "num_blocks": BLOCK_SELECTION,
    "rank_budget": RANK_ALLOCATION,
}


class QuantumConfig(Section):
    """One decision of the training as a binary problem, made again and again."""

    prefix: ClassVar[str] = "quantum"

    problem: Literal["data_selection", "block_selection", "rank_allocation"] = Field(
        default="data_selection",
        description="What is decided: which examples, which blocks, or which LoRA components stay.",
    )
    answer: str = Field(
        default=SAMPLER,
        description="Whose answer is taken: sampler, or a plain one such as greedy or random.",
    )
    data_budget: ShareAboveZero | Auto = Field(
        default="auto",
        description="Share of the examples that is trained on;"
        " auto: all but a tenth of those looked at.",
    )
    target: Literal["pool", "validation"] = Field(
        default="pool",
        description="What the chosen examples stand for: all of them, or the held-out rows.",
    )
    candidates: Count | Auto = Field(
        default="auto",
        description="Examples that are looked at;"
        " auto: as many as max_qubits, the solver and the cost allow.",
    )
    num_blocks: Count | None = Field(
        default=None, description="Blocks that train at a time; none: half of them."
    )
    rank_budget: ShareAboveZero = Field(
        default=0.5, description="Share of the LoRA components that stays, from 0 to 1."
    )
    max_overhead_percent: Annotated[
        float, Gt(0), Le(1e6), Allowed("a percentage above 0, such as 5")
    ] = Field(default=5.0, description="Share of the training's time that quantum steps may take.")
    background: bool = Field(
        default=False,
        description="Solve in another process while the training goes on with the last answer.",
    )
