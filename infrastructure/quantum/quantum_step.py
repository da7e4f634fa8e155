"""One question and its answer."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dwave.samplers import SimulatedAnnealingSampler

from infrastructure.config.resource_config import QuantumResources
from infrastructure.quantum.problems.problem import QuantumProblem, Sample


@dataclass(frozen=True)
class Solution:
    decision: Any
    sample: Mapping[Any, int]
    energy: float
    answered_by: str
    is_fallback: bool
    num_variables: int
    seconds: float
    solver_seconds: float
    alternatives: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def quantum_solve(
    problem: QuantumProblem,
    resources: QuantumResources | None = None,
    *,
    seed: int = 0,
    initial: Sample | None = None,
) -> Solution:
    started = time.monotonic()
    bqm: Any = problem.formulate()
    plain = problem.alternatives()
    asked = time.monotonic()
    found = SimulatedAnnealingSampler().sample(bqm, num_reads=4, num_sweeps=200, seed=seed % 2**31)
    sample = problem.repair(dict(found.first.sample))
    ended = time.monotonic()
    return Solution(
        decision=problem.decode(sample),
        sample=sample,
        energy=float(bqm.energy(sample)),
        answered_by="simulated_annealing",
        is_fallback=False,
        num_variables=len(bqm.variables),
        seconds=ended - started,
        solver_seconds=ended - asked,
        alternatives={name: float(bqm.energy(one)) for name, one in plain.items()},
        info={"num_reads": 4},
    )
