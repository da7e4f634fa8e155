"""Settings of the quantum step: what it decides, which sampler it uses, and its cost limit."""

from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Gt, Le
from pydantic import Field

from infrastructure.config.base import ConfigSection
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
from infrastructure.features.quantum.sampler_needs import most_variables

QUANTUM = "quantum"  # its section, and its extension
DATA_SELECTION, BLOCK_SELECTION = "data_selection", "block_selection"
AT_ANY_COST = 1e6  # percent, for max_overhead_percent: no limit


def _decides(problem: str) -> UsedWhen:
    return UsedWhen(
        lambda config: config.quantum.problem == problem,
        "quantum.unused_other_problem",
        about={"problem": problem},
    )


_DATA, _BLOCKS = map(_decides, (DATA_SELECTION, BLOCK_SELECTION))


class QuantumConfig(ConfigSection):
    """The settings of the quantum step, which solves a training decision as a binary problem."""

    prefix: ClassVar[str] = "quantum"
    help_note: ClassVar[str] = (
        "The quantum step selects training examples, or the blocks to train, by solving a QUBO (a"
        " binary optimization problem) on this machine. {=training.optimization_frequency:N}"
        " runs it every N steps;"
        " {=training.enabled_extensions:quantum} alone runs it once, at the start."
    )
    used_when: ClassVar[tuple[UsedWhen, ...]] = (
        UsedWhen(
            lambda config: QUANTUM in config.training.extensions,
            "quantum.unused_no_quantum_step",
            "quantum.unused_add_quantum_extension",
        ),
    )

    problem: Literal["data_selection", "block_selection"] = Field(
        default="data_selection",
        description="What the quantum step selects: examples (data_selection) or blocks to train.",
    )
    data_budget: Annotated[ShareAboveZero | Auto, _DATA] = Field(
        default="auto",
        description="Share of all examples to train on; auto: leave out a tenth of the candidates.",
    )
    target: Annotated[Literal["pool", "validation"], _DATA] = Field(
        default="pool",
        description="What the selected examples represent: all examples (pool), or held-out"
        " rows (validation).",
    )
    candidates: Annotated[Count | Auto, _DATA] = Field(
        default="auto",
        description="Candidate examples; auto: as many as problem size, solver and time limit"
        " allow.",
    )
    num_blocks: Annotated[Count | None, _BLOCKS] = Field(
        default=None, description="Blocks that train at a time; none: half of them."
    )
    max_overhead_percent: (
        Annotated[float, Gt(0), Le(AT_ANY_COST), Allowed("a percentage above 0, such as 2")] | Auto
    ) = Field(
        default="auto",
        description="Maximum time of quantum steps, in % of training; auto: 1, or 10 if"
        " run every N steps.",
    )
    solver: str = Field(
        default="auto",
        description="QUBO solver: a dimod sampler, such as exact; auto: by the"
        " problem's size and density.",
    )
    max_qubits: Count = Field(
        default=5000, description="Largest problem that the quantum step solves, in variables."
    )
    timeout: Positive = Field(
        default=300, description="Time limit of the solver for one problem, in seconds."
    )
    fallback: Annotated[
        list[str],
        SplitCommas,
        EachOnce,
        Allowed('a list of different names, such as "dense_annealer,exact"'),
    ] = Field(default=[], description="Solvers to try if the first one fails, in this order.")

    def samplers(self) -> list[tuple[str, str]]:
        """Return (setting, sampler name) for the solver and its fallbacks, the preferred first."""
        return [("solver", self.solver), *(("fallback", name) for name in self.fallback)]

    @property
    def most_candidates(self) -> int:
        """The largest number of candidates that fits `max_qubits` and the solver's own limit."""
        return min(self.max_qubits, most_variables(self.solver) or self.max_qubits)

    @property
    def largest_problem(self) -> int:
        """The number of variables of the largest problem that the solver or a fallback supports."""
        limits = [most_variables(name) or self.max_qubits for _, name in self.samplers()]
        return min(self.max_qubits, max(limits))


class QuantumSection(ConfigSection):
    """The field that the quantum step adds to the root of the configuration."""

    quantum: QuantumConfig = Field(
        default=QuantumConfig(), description="What the quantum step decides, and at what cost."
    )


class QuantumTraining(ConfigSection):
    """The field that the quantum step adds to the training section."""

    prefix: ClassVar[str] = "training"

    optimization_frequency: Count | None = Field(
        default=None,
        description="Quantum step every N steps; none: only once, if"
        " {=training.enabled_extensions} has quantum.",
    )


def config_of(trainer: Any) -> QuantumConfig:
    """Return the quantum settings of a trainer."""
    section: QuantumConfig = trainer.sections.get(QUANTUM) or QuantumConfig()
    return section
