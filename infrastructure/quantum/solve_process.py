"""The process in which a whole question is answered while the training goes on beside it.

The problem comes as pickled bytes: only what this project has started writes into that pipe, and
nothing of it ever lies on a disk.
"""

import pickle
import sys
from typing import Any

import numpy as np

from infrastructure.config.sections.quantum_config import QuantumConfig
from infrastructure.core.json_text import JsonObject, as_integer, as_object
from infrastructure.quantum.arrays import Array
from infrastructure.quantum.problems.problem import QuantumProblem
from infrastructure.quantum.quantum_step import quantum_solve
from infrastructure.quantum.samplers.messages import Outgoing
from infrastructure.quantum.samplers.sampler_process import serve

PROBLEM = "problem"


def question_of(problem: QuantumProblem, config: QuantumConfig, seed: int) -> Outgoing:
    """What this process is asked; its answer is a `Solution` as JSON values."""
    packed = np.frombuffer(pickle.dumps(problem, protocol=5), np.uint8)
    return {"config": config.model_dump(mode="json"), "seed": seed}, {PROBLEM: packed}


def solved(values: JsonObject, arrays: dict[str, Array]) -> Outgoing:
    """The answer to `question_of`."""
    problem = pickle.loads(arrays[PROBLEM].data)
    settings: dict[str, Any] = as_object(values["config"])
    solution = quantum_solve(problem, QuantumConfig(**settings), seed=as_integer(values["seed"]))
    return solution.to_json(), {}


if __name__ == "__main__":
    serve(int(sys.argv[1]), solved)
