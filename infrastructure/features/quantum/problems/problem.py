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
    """The actions on a run that decisions can take. A run implements those that it supports."""

    def select_examples(self, ids: Sequence[int]) -> None:
        """Train only on these examples (ids in the training data) from the next epoch on."""

    def train_only(self, blocks: Sequence[str]) -> None:
        """Train only these blocks until the next decision."""


class QuantumProblem(ABC):
    """A training decision as a binary problem, whose lowest energy is the best decision.

    All methods are deterministic: the same problem gives the same model, with its variables in the
    same order, and the same sample gives the same decision.
    """

    name: ClassVar[str]  # the value of `quantum.problem` in a configuration
    config: QuantumConfig | None = None  # used if the caller gives no configuration

    @abstractmethod
    def formulate(self) -> dimod.BinaryQuadraticModel:
        """Build the model, with binary variables. A solver calls this once.

        Raises:
            ValueError: the problem cannot be formulated; the message gives the reason.
        """

    @abstractmethod
    def decode(self, sample: Sample) -> object:
        """Return the decision that a sample encodes, as JSON values.

        Any assignment of zeros and ones to all variables can be decoded. An assignment that breaks
        a rule of the problem (for example, a wrong number of ones) is repaired first.
        """

    @abstractmethod
    def apply(self, decision: object, training: Training) -> None:
        """Apply the decision to `training` by calling exactly one of its methods."""

    def repair(self, sample: Sample) -> Sample:
        """Return the nearest sample that satisfies the problem's rules.

        A sample that satisfies them is returned unchanged. `decode(sample) ==
        decode(repair(sample))`, so the energy of the repaired sample is the energy of the decision.
        """
        return sample

    def alternatives(self) -> dict[str, Sample]:
        """Return baseline answers to this problem, by name, found without a sampler.

        The first baseline is used if no sampler answers. All of them satisfy the problem's rules
        and are deterministic.
        """
        return {}

    def facts(self) -> JsonObject:
        """Return facts about the problem for reports, such as its sizes, as JSON values."""
        return {}
