"""The interface of a training decision that any dimod sampler can make.

A problem has three methods: `formulate` (build the model), `decode` (translate a sample into a
decision) and `apply` (apply the decision to the training). Two more have a default: `repair` and
`alternatives`.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar, Protocol

import dimod

from infrastructure.core.json_text import JsonObject
from infrastructure.features.quantum.config import QuantumConfig

Variable = Hashable  # a plain value: an example's id, a block's name
Sample = Mapping[Variable, int]  # each variable of the model: 0 or 1


class Training(Protocol):
    """The actions that decisions can take on a run. A run implements those that it supports."""

    def select_examples(self, ids: Sequence[int]) -> None:
        """Train on these examples (ids in the training data) from the next epoch on."""

    def train_only(self, blocks: Sequence[str]) -> None:
        """Train only these blocks until the next decision."""


class QuantumProblem(ABC):
    """A training decision as a binary problem; the lowest energy is the best decision.

    All methods are deterministic: the same problem formulates the same model with the variables in
    the same order, and repairs and decodes a sample to the same decision.
    """

    name: ClassVar[str]  # the value of `quantum.problem` in a configuration
    config: QuantumConfig | None = None  # used if the caller gives no configuration

    @abstractmethod
    def formulate(self) -> dimod.BinaryQuadraticModel:
        """Build the model, with binary variables. A solver calls this once.

        Raises:
            ValueError: the problem cannot be formulated; the text gives the reason.
        """

    @abstractmethod
    def decode(self, sample: Sample) -> object:
        """Return the decision that `sample` stands for, as JSON values.

        Any assignment of zeros and ones to all variables can be decoded. An assignment that breaks
        a rule of the problem (for example, a wrong number of ones) is repaired first.
        """

    @abstractmethod
    def apply(self, decision: object, training: Training) -> None:
        """Apply the decision to `training` by calling exactly one of its methods."""

    def repair(self, sample: Sample) -> Sample:
        """Return the nearest feasible sample; a feasible sample is returned unchanged.

        `decode(sample) == decode(repair(sample))`, so the energy of the repaired sample is the
        energy of the decision.
        """
        return sample

    def alternatives(self) -> dict[str, Sample]:
        """Return baseline answers to the same problem, by name, found without a sampler.

        The first baseline is used if no sampler answers. All are feasible and deterministic.
        """
        return {}

    def facts(self) -> JsonObject:
        """Return facts about the problem for reports, as JSON values, such as its sizes."""
        return {}
