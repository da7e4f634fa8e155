"""Functions that assign training examples to curriculum stages, by length or loss.

These are pure functions of arrays. Losses are measured elsewhere.
"""

import base64
import zlib

import numpy as np
import numpy.typing as npt

from infrastructure.core.errors import InputError
from infrastructure.data.serving.example_order import Indices

Stages = npt.NDArray[np.uint8]


def by_rank(hardness: npt.NDArray[np.generic], num_stages: int) -> Stages:
    """Sort the examples into stages of equal size (± one), and return their stages, uint8 (N,).

    The first stage has the lowest `hardness`; NaN comes last.

    Raises:
        ValueError: there are fewer examples than stages.
    """
    if len(hardness) < num_stages:
        raise InputError(
            "curriculum.too_few_examples_for_stages",
            num_examples=len(hardness),
            num_stages=num_stages,
        )
    stages = np.empty(len(hardness), dtype=np.uint8)
    in_order = np.argsort(hardness, kind="stable")
    for stage, ids in enumerate(np.array_split(in_order, num_stages)):
        stages[ids] = stage
    return stages


def ids_of(stages: Stages, stage: int) -> Indices:
    """Return the ids of the examples of a stage and of all earlier stages, ascending."""
    return np.flatnonzero(stages <= stage).astype(np.int64)


def packed(stages: Stages) -> str:
    """Encode the stages as a short text."""
    return base64.b85encode(zlib.compress(stages.tobytes(), 9)).decode()


def unpacked(text: str) -> Stages:
    """Decode the stages from a text that `packed` returned."""
    return np.frombuffer(zlib.decompress(base64.b85decode(text)), dtype=np.uint8)
