"""A sampler that enumerates all assignments of a small problem."""

from collections.abc import Sequence
from typing import ClassVar

import dimod
import numpy as np
import numpy.typing as npt

from infrastructure.core.errors import InputError
from infrastructure.features.quantum.sampler_needs import MOST_COUNTED
from infrastructure.features.quantum.samplers.bqm_arrays import vectors_of

Energies = npt.NDArray[np.float64]


class ExactSampler(dimod.Sampler):
    """A sampler that finds the assignments with the lowest energy by enumerating all of them.

    `dimod.ExactSolver` returns every assignment, which takes a minute at 20 variables. This sampler
    takes a tenth of a second and returns only the requested number.
    """

    parameters: ClassVar[dict[str, object]] = {"num_reads": [], "num_ones": []}
    properties: ClassVar[dict[str, object]] = {"max_variables": MOST_COUNTED}

    def sample(
        self,
        bqm: dimod.BinaryQuadraticModel,
        *,
        num_reads: int = 1,
        num_ones: int | None = None,
        **unknown: object,
    ) -> dimod.SampleSet:
        """Return the `num_reads` best assignments, best first.

        If `num_ones` is given, only assignments with that many ones are returned.

        Raises:
            ValueError: the model has more than 20 variables, or `num_ones` is out of range.
        """
        self.remove_unknown_kwargs(**unknown)
        refuse_too_many("exact", bqm.num_variables)
        n = bqm.num_variables
        if num_ones is not None and not 0 <= num_ones <= n:
            raise InputError("quantum.exact_num_ones_out_of_range", num_ones=num_ones, count=n)
        energies = all_energies(bqm)
        if num_ones is not None:
            energies[np.bitwise_count(np.arange(len(energies))) != num_ones] = np.inf
        count = min(max(1, num_reads), int(np.isfinite(energies).sum()))
        numbers = np.argpartition(energies, count - 1)[:count]
        numbers = numbers[np.argsort(energies[numbers], kind="stable")]
        sample_set = as_sample_set(bqm, numbers)
        sample_set.info["is_cut_off"] = False
        return sample_set


def refuse_too_many(name: str, num_variables: int) -> None:
    """Raise ValueError if there are too many variables to enumerate."""
    if num_variables > MOST_COUNTED:
        raise InputError(
            "quantum.too_many_variables_to_enumerate",
            num_variables=num_variables,
            sampler=name,
            limit=MOST_COUNTED,
        )


def all_energies(bqm: dimod.BinaryQuadraticModel) -> Energies:
    """Return the energy of every assignment; (2^n,).

    Bit i of an index is 1 if variable i is one (or up).
    """
    binary = bqm if bqm.vartype is dimod.BINARY else bqm.change_vartype(dimod.BINARY, inplace=False)
    vectors = vectors_of(binary)
    n = len(vectors.linear)
    matrix = np.zeros((n, n))
    np.add.at(matrix, (vectors.rows, vectors.columns), vectors.biases)
    matrix += matrix.T
    energies = np.array([vectors.offset])
    for i in range(n):
        added = np.array([vectors.linear[i]])
        for j in range(i):
            added = np.concatenate([added, added + matrix[i, j]])
        energies = np.concatenate([energies, energies + added])
    return energies


def bits_of(numbers: npt.NDArray[np.int64], num_variables: int) -> npt.NDArray[np.int8]:
    """Convert indices of assignments to rows of 0 and 1; (m, n)."""
    shifts = np.arange(num_variables)
    rows: npt.NDArray[np.int8] = ((numbers[:, None] >> shifts) & 1).astype(np.int8)
    return rows


def as_sample_set(
    bqm: dimod.BinaryQuadraticModel,
    numbers: npt.NDArray[np.int64],
    counts: Sequence[int] | None = None,
) -> dimod.SampleSet:
    """Build a sample set from indices of assignments, with the model's vartype and energies."""
    rows = bits_of(numbers, bqm.num_variables)
    rows = rows if bqm.vartype is dimod.BINARY else (2 * rows - 1).astype(np.int8)
    occurrences = np.ones(len(rows), int) if counts is None else np.asarray(counts, int)
    labelled = (rows, list(bqm.variables))
    return dimod.SampleSet.from_samples_bqm(labelled, bqm, num_occurrences=occurrences)
