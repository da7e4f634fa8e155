"""Models that the tests of samplers ask about."""

import dimod
import numpy as np


def random_model(
    num_variables: int, seed: int, vartype: str = "BINARY", density: float = 1.0
) -> dimod.BinaryQuadraticModel:
    """Normal coefficients, labels that are letters with numbers."""
    random = np.random.default_rng(seed)
    rows, columns = np.triu_indices(num_variables, 1)
    kept = random.random(len(rows)) < density
    return dimod.BinaryQuadraticModel.from_numpy_vectors(
        random.standard_normal(num_variables),
        (rows[kept], columns[kept], random.standard_normal(int(kept.sum()))),
        float(random.standard_normal()),
        vartype,
        variable_order=[f"v{i}" for i in range(num_variables)],
    )


def least_energy(bqm: dimod.BinaryQuadraticModel, num_ones: int | None = None) -> float:
    """By dimod's own enumeration."""
    found = dimod.ExactSolver().sample(bqm)
    ones = (np.asarray(found.record.sample) > 0).sum(axis=1)
    energies = found.record.energy
    return float(energies.min() if num_ones is None else energies[ones == num_ones].min())
