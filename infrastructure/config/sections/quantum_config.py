"""The quantum step: what it decides, which sampler solves it, and what that may cost."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Gt, Le
from pydantic import Field

from infrastructure.config.base import ConfigSection
from infrastructure.config.sampler_needs import most_variables
from infrastructure.config.sections.training_config import QUANTUM
from infrastructure.config.types import (
    Allowed,
    Auto,
    Count,
    EachOnce,
    Positive,
    ShareAboveZero,
    SplitCommas,
    UsedWhen,
)

DATA_SELECTION, BLOCK_SELECTION, RANK_ALLOCATION = (
    "data_selection",
    "block_selection",
    "rank_allocation",
)
AT_ANY_COST = 1e6  # percent of max_overhead_percent: no bound at all
SAMPLER = "sampler"  # what answers, where no baseline was chosen
# What solves each problem without a sampler.
BASELINES = {
    DATA_SELECTION: (
        *("greedy_and_exchange", "greedy", "deduplicate_then_top", "top_relevance", "random"),
    ),
    BLOCK_SELECTION: ("gradient_norm", "first_order", "random", "cyclic", "top"),
    RANK_ALLOCATION: ("diagonal_fisher", "sensitivity", "random"),
}


def _decides(problem: str) -> UsedWhen:
    return UsedWhen(
        lambda config: config.quantum.problem == problem,
        "config.unused_other_problem",
        about={"problem": problem},
    )


_DATA, _BLOCKS, _RANKS = map(_decides, BASELINES)
_SAMPLED = UsedWhen(
    lambda config: config.quantum.answer == SAMPLER,
    "config.unused_no_sampler",
)


class QuantumConfig(ConfigSection):
    """One decision of the training as a binary problem, made again and again."""

    prefix: ClassVar[str] = "quantum"
    used_when: ClassVar[tuple[UsedWhen, ...]] = (
        UsedWhen(
            lambda config: QUANTUM in config.training.extensions,
            "config.unused_no_quantum_step",
            "config.unused_add_quantum_extension",
        ),
    )

    problem: Literal["data_selection", "block_selection", "rank_allocation"] = Field(
        default="data_selection",
        description="What is decided: which examples, which blocks, or which LoRA components stay.",
    )
    answer: str = Field(
        default=SAMPLER,
        description="What solves it: sampler, or a baseline such as greedy or random.",
    )
    data_budget: Annotated[ShareAboveZero | Auto, _DATA] = Field(
        default="auto",
        description="Share of the examples that is trained on;"
        " auto: all but a tenth of those looked at.",
    )
    target: Annotated[Literal["pool", "validation"], _DATA] = Field(
        default="pool",
        description="What the chosen examples stand for: all of them, or the held-out rows.",
    )
    candidates: Annotated[Count | Auto, _DATA] = Field(
        default="auto",
        description="Examples that are looked at;"
        " auto: as many as max_qubits, the solver and the cost allow.",
    )
    num_blocks: Annotated[Count | None, _BLOCKS] = Field(
        default=None, description="Blocks that train at a time; none: half of them."
    )
    rank_budget: Annotated[ShareAboveZero, _RANKS] = Field(
        default=0.5, description="Share of the LoRA components that stays, from 0 to 1."
    )
    max_overhead_percent: (
        Annotated[float, Gt(0), Le(AT_ANY_COST), Allowed("a percentage above 0, such as 2")] | Auto
    ) = Field(
        default="auto",
        description="Time for quantum steps in percent;"
        " auto: 1, or 10 and none skipped with a frequency.",
    )
    background: Annotated[bool, _SAMPLED] = Field(
        default=False,
        description="Solve in another process while the training goes on with the last answer.",
    )
    solver: Annotated[str, _SAMPLED] = Field(
        default="auto", description="Name of the sampler; auto: by size, density and time."
    )
    max_qubits: Count = Field(default=5000, description="Largest problem, in variables.")
    timeout: Annotated[Positive, _SAMPLED] = Field(
        default=300, description="Hard bound on the wall time of one answer, in seconds."
    )
    fallback: Annotated[
        list[str],
        SplitCommas,
        EachOnce,
        Allowed('a list of names, each once, such as "tabu,exact"'),
        _SAMPLED,
    ] = Field(
        default=[], description="Samplers that are tried when the solver fails, in this order."
    )

    def samplers(self) -> list[tuple[str, str]]:
        """Setting and name of each sampler that may solve it, the preferred one first."""
        return [("solver", self.solver), *(("fallback", name) for name in self.fallback)]

    @property
    def most_candidates(self) -> int:
        """Variables of the largest problem that is worth making: the solver takes no larger one."""
        return min(self.max_qubits, most_variables(self.solver) or self.max_qubits)

    @property
    def largest_problem(self) -> int:
        """Variables of the largest problem that any of the samplers takes."""
        limits = [most_variables(name) or self.max_qubits for _, name in self.samplers()]
        return min(self.max_qubits, max(limits))
