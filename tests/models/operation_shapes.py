"""Which shapes an operation of torch met."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class OperationShapes(TorchDispatchMode):
    """While entered: remembers the operations whose name holds `part`, with the shapes of their
    tensors."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self.part = part
        self.shapes: set[tuple[Any, ...]] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if self.part in str(function):
            given = [tuple(one.shape) for one in args if isinstance(one, torch.Tensor)]
            self.shapes.add((str(function), *given))
        return function(*args, **(kwargs or {}))
