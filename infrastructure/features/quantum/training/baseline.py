"""Solutions by a baseline instead of a sampler: greedy, random, gradient norm and others."""

import time

import dimod

from infrastructure.core.lookup import look_up
from infrastructure.features.quantum.problems.problem import QuadraticModel, QuantumProblem, Sample
from infrastructure.features.quantum.solving.quantum_step import Solution


def baseline_solution(problem: QuantumProblem, name: str) -> Solution:
    """Solve a problem by one of its baselines, without a sampler.

    Raises:
        ValueError: the problem has no baseline of that name; the message suggests the nearest.
    """
    started = time.monotonic()
    plain = problem.alternatives()
    sample = look_up(f"baseline for {problem.name}", name, plain)
    seconds = time.monotonic() - started
    question = problem.formulate()
    return Solution(
        decision=problem.decode(sample),
        sample=sample,
        energy=_energy(question, sample),
        answered_by=name,
        is_fallback=False,
        num_variables=len(question.variables),
        seconds=time.monotonic() - started,
        solver_seconds=seconds,
        alternatives={other: _energy(question, bits) for other, bits in plain.items()},
        failures=[],
        info={},
    )


def _energy(question: QuadraticModel, sample: Sample) -> float:
    if isinstance(question, dimod.ConstrainedQuadraticModel):
        return float(question.objective.energy(dict(sample)))
    return float(question.energy(dict(sample)))
