"""Counters of tensor memory: what each line of code allocates.

Storages are counted exactly instead of sampled, with the same result on a CPU and on a GPU.
"""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

TORCH_FOLDER = str(Path(torch.__file__).parent)


class NewTensors(TorchDispatchMode):
    """A dispatch mode that calls `note` for every new tensor storage inside the block."""

    def note(self, line: str, storage: torch.UntypedStorage) -> None:
        raise NotImplementedError

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        given = {_address(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        made = {
            _address(t): t.untyped_storage()
            for t in tree_leaves(result)
            if isinstance(t, torch.Tensor) and _address(t) not in given
        }
        if made:
            line = _line_outside_torch()
            for storage in made.values():
                self.note(line, storage)
        return result


class AllocationCounter(NewTensors):
    """A counter of the bytes of all tensors created inside the block, by the line that created
    them.

    The line is the nearest one outside of torch. Tensors created in a backward pass count for the
    line that called it.

    Attributes:
        bytes_of_line: the bytes of each `file:line`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes_of_line: Counter[str] = Counter()

    def note(self, line: str, storage: torch.UntypedStorage) -> None:
        self.bytes_of_line[line] += storage.nbytes()

    def top(self, count: int) -> list[tuple[str, int]]:
        """Return the lines that allocated most, with their bytes."""
        return self.bytes_of_line.most_common(count)


def _address(tensor: torch.Tensor) -> tuple[int, object]:
    return tensor.untyped_storage().data_ptr(), tensor.device


def _line_outside_torch() -> str:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name != __file__ and not name.startswith((TORCH_FOLDER, "<")):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "torch"
