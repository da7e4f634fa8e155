"""The process that solves a whole problem while training continues.

The problem arrives as pickled bytes. Only processes started by Temper write into that pipe, and the
bytes are never stored on a disk.
"""

import pickle
import sys
from typing import Any

import numpy as np

from infrastructure.core.json_text import JsonObject, as_integer, as_object
from infrastructure.features.quantum.config import QuantumConfig
from infrastructure.features.quantum.problems.problem import QuantumProblem
from infrastructure.features.quantum.samplers.messages import Outgoing
from infrastructure.features.quantum.samplers.sampler_process import serve
from infrastructure.features.quantum.solving.arrays import Array
from infrastructure.features.quantum.solving.quantum_step import quantum_solve

PROBLEM = "problem"


def question_of(problem: QuantumProblem, config: QuantumConfig, seed: int) -> Outgoing:
    """Return the message that makes the solving process reply with a `Solution` as JSON values."""
    packed = np.frombuffer(pickle.dumps(problem, protocol=5), np.uint8)
    return {"config": config.model_dump(mode="json"), "seed": seed}, {PROBLEM: packed}


def solved(values: JsonObject, arrays: dict[str, Array]) -> Outgoing:
    """Solve the problem in a message from `question_of`, and return the reply."""
    problem = pickle.loads(arrays[PROBLEM].data)
    settings: dict[str, Any] = as_object(values["config"])
    solution = quantum_solve(problem, QuantumConfig(**settings), seed=as_integer(values["seed"]))
    return solution.to_json(), {}


if __name__ == "__main__":
    serve(int(sys.argv[1]), solved)
