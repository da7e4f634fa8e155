"""The stage of each training example: by its length, its loss or its task.

Pure functions of arrays. A stage by loss is a function of losses that somebody has measured.
"""

import base64
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from infrastructure.core.errors import InputError
from infrastructure.core.lookup import unknown_name
from infrastructure.training.data.serving.example_order import Indices

Stages = npt.NDArray[np.uint8]
MOST_STAGES = 100


def by_rank(hardness: npt.NDArray[np.generic], num_stages: int) -> Stages:
    """The stage of each example, uint8 (N,): as many in each as in any other (± one), those with
    the least of `hardness` in the first; what is not a number comes last.

    Raises:
        ValueError: there are fewer examples than stages.
    """
    if len(hardness) < num_stages:
        raise InputError(
            "training.too_few_examples_for_stages",
            num_examples=len(hardness),
            num_stages=num_stages,
        )
    stages = np.empty(len(hardness), dtype=np.uint8)
    in_order = np.argsort(hardness, kind="stable")
    for stage, ids in enumerate(np.array_split(in_order, num_stages)):
        stages[ids] = stage
    return stages


def by_task(tasks: Sequence[str], order: Sequence[str]) -> Stages:
    """The stage of each example, uint8 (N,): the place of its task in `order`.

    Raises:
        ValueError: a task has no examples, or examples have a task that is not there.
    """
    known = sorted(set(tasks))
    for name in order:
        if name not in known:
            message = unknown_name("task", name, known)
            raise InputError("training.curriculum_unknown_task", reason=message)
    left_out = [name for name in known if name not in order]
    if left_out:
        raise InputError(
            "training.curriculum_task_not_listed",
            task=left_out[0] or "(none)",
            count=tasks.count(left_out[0]),
        )
    place = {name: number for number, name in enumerate(order)}
    return np.array([place[task] for task in tasks], dtype=np.uint8)


def ids_of(stages: Stages, stage: int, *, keeps_easier: bool) -> Indices:
    """Ids of the examples of a stage, ascending; with those of the stages before it, if it keeps
    them."""
    chosen = stages <= stage if keeps_easier else stages == stage
    return np.flatnonzero(chosen).astype(np.int64)


def packed(stages: Stages) -> str:
    """The stages as a short text."""
    return base64.b85encode(zlib.compress(stages.tobytes(), 9)).decode()


def unpacked(text: str) -> Stages:
    """The stages that `packed` wrote."""
    return np.frombuffer(zlib.decompress(base64.b85decode(text)), dtype=np.uint8)
