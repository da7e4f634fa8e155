"""A copy of a run's tensors in memory that another process shares. The memory is reused for every
save.
"""

import mmap
import os
import tempfile
from collections.abc import Mapping
from math import prod
from typing import BinaryIO

import torch

from infrastructure.backup.format.packs import BITS, TensorBytes
from infrastructure.backup.format.tensor_bytes import DTYPES, dtype_name
from infrastructure.core.errors import StorageError
from infrastructure.core.integers import ceil_div

ALIGNMENT_BYTES = 64
GROWTH_BYTES = 16 * 1024**2  # so that a slightly larger state does not need a new mapping

State = Mapping[str, torch.Tensor | TensorBytes]
Place = tuple[str, str, tuple[int, ...], int, int]  # name, type, shape, begin, length


class SharedBuffer:
    """A block of shared memory into which states are copied. It grows if necessary and is reused.

    If the tensors have the same names, types and shapes as last time, the layout is reused, and a
    copy takes hardly longer than moving the bytes. Tensors that are on a GPU or not contiguous are
    copied directly, too, without a temporary copy.

    Attributes:
        places: the locations of the tensors of the last copy.
    """

    def __init__(self) -> None:
        self.places: list[Place] = []
        self._file: BinaryIO | None = None
        self._memory: mmap.mmap | None = None
        self._targets: dict[str, torch.Tensor] = {}
        self._laid_out: list[tuple[str, str, tuple[int, ...]]] = []

    @property
    def descriptor(self) -> int:
        """The file descriptor of the memory, for the process that shares it."""
        return self._opened().fileno()

    @property
    def memory(self) -> mmap.mmap:
        """The whole memory. `places` and `size_bytes` describe the last copy in the memory."""
        assert self._memory is not None, "nothing was copied yet"
        return self._memory

    @property
    def size_bytes(self) -> int:
        """The length of the last copy in bytes. The memory after it is free."""
        return self.places[-1][3] + self.places[-1][4] if self.places else 0

    def take(self, state: State) -> None:
        """Copy `state` into the shared memory.

        Raises:
            ValueError: if a tensor has a type that cannot be stored.
            StorageError: if there is not enough memory.
        """
        outlines = [
            (name, tensor.dtype, tensor.shape)
            if isinstance(tensor, TensorBytes)
            else (name, dtype_name(tensor), tuple(tensor.shape))
            for name, tensor in state.items()
        ]
        if outlines != self._laid_out:
            self.places, self._laid_out, self._targets = _lay_out(outlines), outlines, {}
        self._reserve(self.size_bytes)
        with torch.no_grad():
            for place, tensor in zip(self.places, state.values(), strict=True):
                if isinstance(tensor, TensorBytes):
                    self.memory[place[3] : place[3] + place[4]] = tensor.data
                elif place[4]:
                    self._target(place).copy_(tensor)

    def append(self, data: bytes) -> int:
        """Write `data` after the last copy and return its offset.

        Raises:
            StorageError: as in `take`.
        """
        begin = self.size_bytes
        self._reserve(begin + len(data))
        self.memory[begin : begin + len(data)] = data
        return begin

    def close(self) -> None:
        """Release the memory."""
        self._targets, self._laid_out, self._memory = {}, [], None
        if self._file is not None:
            self._file.close()
        self._file = None

    def _target(self, place: Place) -> torch.Tensor:
        name, dtype, shape, begin, _ = place
        if name not in self._targets:
            whole = torch.frombuffer(
                self.memory, dtype=DTYPES[dtype], count=prod(shape), offset=begin
            )
            self._targets[name] = whole.reshape(shape)
        return self._targets[name]

    def _reserve(self, size_bytes: int) -> None:
        """Grow the memory if necessary.

        The memory never shrinks, because allocating memory takes longer than a copy.
        """
        if self._memory is not None and len(self._memory) >= size_bytes:
            return
        descriptor, length = self.descriptor, ceil_div(size_bytes, GROWTH_BYTES) * GROWTH_BYTES
        try:
            os.posix_fallocate(descriptor, 0, length)  # fail here, not with SIGBUS during the copy
        except OSError as error:
            raise StorageError(
                "backup.no_memory_for_checkpoint_copy", size_mib=length / 2**20, error=error
            ) from error
        self._targets = {}
        self._memory = mmap.mmap(descriptor, length)

    def _opened(self) -> BinaryIO:
        if self._file is None:
            self._file = _anonymous_file()
        return self._file


def size_of_state(state: State) -> int:
    """Return the total number of bytes of all tensors."""
    return sum(
        len(tensor.data) if isinstance(tensor, TensorBytes) else tensor.nbytes
        for tensor in state.values()
    )


def _lay_out(outlines: list[tuple[str, str, tuple[int, ...]]]) -> list[Place]:
    places: list[Place] = []
    end = 0
    for name, dtype, shape in outlines:
        begin = ceil_div(end, ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        end = begin + prod(shape) * BITS[dtype] // 8
        places.append((name, dtype, shape, begin, end - begin))
    return places


def _anonymous_file() -> BinaryIO:
    """Return a file without a name, in memory if the system supports it."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("checkpoint"), "r+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)
