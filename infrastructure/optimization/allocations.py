"""Counters of tensor memory: what each line of code allocates, and what autograd saves.

Both count storages exactly instead of sampling, with the same result on a CPU and on a GPU.
"""

import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

FIRST_LOOK = 10_000
TORCH_FOLDER = str(Path(torch.__file__).parent)


class _NewTensors(TorchDispatchMode):
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


class AllocationCounter(_NewTensors):
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


class LiveTensors(_NewTensors):
    """A record of the tensors that are created inside the block and not freed yet.

    Python's weak references are used, because torch's own `StorageWeakRef` prevents storages from
    being freed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: list[tuple[weakref.ref[torch.UntypedStorage], str, int, int]] = []
        self._next_look = FIRST_LOOK
        self._age = 0

    def note(self, line: str, storage: torch.UntypedStorage) -> None:
        self._made.append((weakref.ref(storage), line, storage.nbytes(), self._age))
        if len(self._made) >= self._next_look:
            self._made = [one for one in self._made if one[0]() is not None]
            self._next_look = max(FIRST_LOOK, 2 * len(self._made))

    def grow_older(self) -> None:
        """Mark all tensors created so far as old, for `bytes_of_line(is_old=True)`."""
        self._age += 1

    def bytes_of_line(self, is_old: bool = False) -> Counter[str]:
        """Return `file:line` → the bytes of tensors created there that are not freed yet.

        Args:
            is_old: count only tensors created before the last `grow_older`.
        """
        sizes: Counter[str] = Counter()
        for reference, line, size, age in self._made:
            if reference() is not None and not (is_old and age == self._age):
                sizes[line] += size
        return sizes


@contextmanager
def kept_for_backward(model: torch.nn.Module) -> Iterator[list[int]]:
    """Count the bytes that the block makes autograd save for the backward pass.

    Yield a list whose only item is this number.

    Each storage counts once. The model's own weights do not count.
    """
    own = {_address(tensor) for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[tuple[int, object], int] = {}
    total = [0]

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if (place := _address(tensor)) not in own and place not in kept:
            kept[place] = tensor.untyped_storage().nbytes()
            total[0] += kept[place]
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield total


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
