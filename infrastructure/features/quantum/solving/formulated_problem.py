"""A formulated problem: its model, its baselines, and the evaluation of a sampler's answer."""

from collections.abc import Hashable, Mapping, Sequence

import dimod
import numpy as np

from infrastructure.core.errors import SamplerError
from infrastructure.features.quantum.problems.problem import QuantumProblem, Sample
from infrastructure.features.quantum.samplers.bqm_arrays import vectors_of


class FormulatedProblem:
    """The problem that the samplers of one quantum step solve, with its model and baselines.

    Attributes:
        problem: the problem that was formulated.
        bqm: its model.
        samples: the baselines, by name.
        alternatives: the energies of the baselines, by name.
        num_ones: the number of ones in every valid answer; None if it varies.
    """

    def __init__(self, problem: QuantumProblem) -> None:
        """Build the model and the baselines of a problem.

        Raises:
            ValueError: the problem cannot be formulated.
        """
        self.problem = problem
        self.bqm = problem.formulate()
        self.samples: dict[str, Sample] = problem.alternatives()
        self.alternatives = dict(
            zip(self.samples, self.energies(list(self.samples.values())), strict=True)
        )
        self.num_ones = self._number_of_ones()

    @property
    def num_variables(self) -> int:
        return int(self.bqm.num_variables)

    def energies(self, samples: Sequence[Sample]) -> list[float]:
        """Return the energies of the samples."""
        if not samples:
            return []
        order = list(self.bqm.variables)
        rows = np.array([[sample[label] for label in order] for sample in samples], np.int8)
        return [float(energy) for energy in self.bqm.energies((rows, order))]

    def cut_to(self, max_variables: int) -> dimod.BinaryQuadraticModel:
        """Return the model, reduced to at most `max_variables` variables.

        The variables with the lowest linear terms are kept. The others are fixed at 0.

        Raises:
            SamplerError: the model is too large and cannot be cut: it has spin variables, or every
                answer has at least `max_variables` ones.
        """
        n = self.num_variables
        if n <= max_variables:
            return self.bqm
        if self.bqm.vartype is not dimod.BINARY:
            raise SamplerError("quantum.too_many_variables", count=n, limit=max_variables)
        if self.num_ones is not None and self.num_ones >= max_variables:
            raise SamplerError(
                "quantum.nothing_left_to_decide",
                num_chosen=self.num_ones,
                count=n,
                limit=max_variables,
            )
        return _part(self.bqm, max_variables)

    def whole(self, sample: Mapping[Hashable, int]) -> Sample:
        """Return a sampler's answer over all variables of the problem; variables left out are 0."""
        return {label: int(sample.get(label, 0)) for label in self.bqm.variables}

    def _number_of_ones(self) -> int | None:
        """Return the problem's `num_chosen` if every baseline has that many ones, else None."""
        number = getattr(self.problem, "num_chosen", None)
        if number is None or self.bqm.vartype is not dimod.BINARY:
            return None
        is_count = all(sum(sample.values()) == number for sample in self.samples.values())
        return int(number) if is_count and self.samples else None


def _part(bqm: dimod.BinaryQuadraticModel, count: int) -> dimod.BinaryQuadraticModel:
    """Reduce a model to the `count` variables with the lowest linear terms, in their order."""
    vectors = vectors_of(bqm)
    kept = np.sort(np.argsort(vectors.linear, kind="stable")[:count])
    place = np.full(len(vectors.linear), -1)
    place[kept] = np.arange(count)
    inside = (place[vectors.rows] >= 0) & (place[vectors.columns] >= 0)
    labels = list(bqm.variables)
    return dimod.BinaryQuadraticModel.from_numpy_vectors(
        vectors.linear[kept],
        (place[vectors.rows[inside]], place[vectors.columns[inside]], vectors.biases[inside]),
        vectors.offset,
        dimod.BINARY,
        variable_order=[labels[i] for i in kept],
    )
