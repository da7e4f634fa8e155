"""Functions that assign training examples to curriculum stages, by length, loss or task.

These are pure functions of arrays. Losses are measured elsewhere.
"""

import base64
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from infrastructure.core.errors import InputError
from infrastructure.core.lookup import unknown_name
from infrastructure.data.serving.example_order import Indices

Stages = npt.NDArray[np.uint8]
MOST_STAGES = 100


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


def by_task(tasks: Sequence[str], order: Sequence[str]) -> Stages:
    """Return the stage of each example, uint8 (N,): the position of its task in `order`.

    Raises:
        ValueError: a task has no examples, or examples have a task that is not listed.
    """
    known = sorted(set(tasks))
    for name in order:
        if name not in known:
            message = unknown_name("task", name, known)
            raise InputError("curriculum.unknown_task", reason=message)
    left_out = [name for name in known if name not in order]
    if left_out:
        raise InputError(
            "curriculum.task_not_listed",
            task=left_out[0] or "(none)",
            count=tasks.count(left_out[0]),
        )
    place = {name: number for number, name in enumerate(order)}
    return np.array([place[task] for task in tasks], dtype=np.uint8)


def ids_of(stages: Stages, stage: int, *, keeps_easier: bool) -> Indices:
    """Return the ids of the examples of a stage, ascending.

    With `keeps_easier`, the examples of earlier stages are included.
    """
    chosen = stages <= stage if keeps_easier else stages == stage
    return np.flatnonzero(chosen).astype(np.int64)


def packed(stages: Stages) -> str:
    """Encode the stages as a short text."""
    return base64.b85encode(zlib.compress(stages.tobytes(), 9)).decode()


def unpacked(text: str) -> Stages:
    """Decode the stages from a text that `packed` returned."""
    return np.frombuffer(zlib.decompress(base64.b85decode(text)), dtype=np.uint8)
