"""What a decision of training must say about itself so that any dimod sampler can make it.

A problem is three methods: `formulate` (the question), `decode` (what an answer means) and `apply`
(telling the training). Two more have a default: `repair` and `alternatives`.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar, Protocol

import dimod

from infrastructure.config.sections.quantum_config import QuantumConfig
from infrastructure.core.json_text import JsonObject

Variable = Hashable  # a plain value with a meaning: an example's id, a block's name
Sample = Mapping[Variable, int]  # each variable of the model: 0 or 1
QuadraticModel = dimod.BinaryQuadraticModel | dimod.ConstrainedQuadraticModel


class Training(Protocol):
    """What a problem may ask of a training; the training implements what it can do."""

    def select_examples(self, ids: Sequence[int]) -> None:
        """Train on these examples (ids in the training data) from the next epoch on."""

    def train_only(self, blocks: Sequence[str]) -> None:
        """Only these blocks train until the next decision."""

    def keep_components(self, kept: Mapping[str, Sequence[int]]) -> None:
        """Of each LoRA module named, only the components (indices of its rank) in the list stay."""


class QuantumProblem(ABC):
    """A decision of training as a binary problem; the lowest energy is the best decision.

    Everything it says is a function of what it was made from: the same problem formulates the same
    model with the variables in the same order, and repairs and decodes to the same decision.
    """

    name: ClassVar[str]  # as `quantum.problem` in a configuration spells it
    config: QuantumConfig | None = None  # which sampler solves it, where the caller gives none

    @abstractmethod
    def formulate(self) -> QuadraticModel:
        """The question, with binary variables. Whoever solves it calls this once.

        Raises:
            ValueError: what was given cannot be asked; the text says why.
        """

    @abstractmethod
    def decode(self, sample: Sample) -> object:
        """The decision that `sample` stands for, made of JSON values.

        Any assignment of zeros and ones to all variables is decoded; one that breaks a rule of the
        problem (a wrong number chosen) is repaired first.
        """

    @abstractmethod
    def apply(self, decision: object, training: Training) -> None:
        """Tell `training` the decision, by exactly one of its methods."""

    def repair(self, sample: Sample) -> Sample:
        """The nearest sample that keeps all rules; one that keeps them comes back as it is.

        `decode(sample) == decode(repair(sample))`, so the energy of the repaired sample is the
        energy of the decision.
        """
        return sample

    def alternatives(self) -> dict[str, Sample]:
        """Baselines: answers to the same question, by name, for comparison; no sampler is asked.

        The first one answers where no sampler does. All keep the problem's rules. Deterministic.
        """
        return {}

    def facts(self) -> JsonObject:
        """What a reader of the answer should know, as JSON values: sizes, what was left out."""
        return {}
