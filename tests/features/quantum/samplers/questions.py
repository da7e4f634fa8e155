"""Models that the tests of samplers ask about."""

from typing import Any

import dimod
import numpy as np
import pytest

from infrastructure.features.quantum.samplers.deadline import Deadline
from infrastructure.features.quantum.samplers.messages import Message
from infrastructure.features.quantum.samplers.process_sampler import Child


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


def waits_cut_short(monkeypatch: pytest.MonkeyPatch, seconds: float = 1.0) -> list[float]:
    """Each wait for another process ends after so long; how long each might have lasted. A limit so
    short that a test may wait for it would be over on a busy machine before anything is asked."""
    limits: list[float] = []
    exchange = Child.exchange

    def hurried(self: Child, question: Any, arrays: Any, deadline: Deadline) -> Message:
        limits.append(deadline.seconds_left)
        return exchange(self, question, arrays, Deadline(seconds))

    monkeypatch.setattr(Child, "exchange", hurried)
    return limits
