"""A place in memory whose faults a test sets, and versions to copy there."""

import errno
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from infrastructure.backup.backends.base import Content, Place
from infrastructure.backup.format.file_operations import Buffer
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import StorageError
from tests.faults.memory_files import MemoryFiles

RUN = "run-1"


class MemoryPlace(Place):
    """Confirms what `is_safe` lets it; fails where `fault` raises."""

    url = "memory:here"
    is_slow = False

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.written: list[Path] = []
        self.removed: list[Path] = []
        self.is_safe: Callable[[Path], bool] = lambda path: True
        self.fault: Callable[[str, Path], None] = lambda operation, path: None

    def read(self, path: Path) -> Iterator[bytes]:
        self.fault("read", path)
        return self.files.read(path)

    def size(self, path: Path) -> int:
        self.fault("size", path)
        return self.files.size(path)

    def names(self, directory: Path) -> list[str]:
        self.fault("names", directory)
        return self.files.names(directory)

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        self.fault("write", path)
        self.files.write(path, buffers)
        if path.is_relative_to(RUN):  # the rest tells which place it is
            self.written.append(path)

    def remove(self, path: Path) -> None:
        self.fault("remove", path)
        self.files.remove(path)
        self.removed.append(path)

    def confirm(self, path: Path, content: Content) -> bool:
        self.fault("confirm", path)
        if Content.of(self.files.read(path)) != content:
            raise StorageError(f"{path} holds other bytes")
        return self.is_safe(path)

    def advice(self, error: OSError) -> str:
        return "mount it again" if error.errno == errno.ENOTCONN else "look at it"


def disconnected(operation: str, path: Path) -> None:
    raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")


def save(store: Store, step: int, **facts: Any) -> str:
    """A version: a part that never changes, one that always does, one that comes back."""
    tensors = {
        "frozen/base": TensorBytes("U8", (64,), bytes(range(64))),
        "model/w": TensorBytes("U8", (32,), bytes([step % 251]) * 32),
        "optimizer/m": TensorBytes("U8", (32,), bytes([step % 2]) * 32),
    }
    return store.commit(tensors, {"step": step}, step=step, **facts)


def run_until(tick: Callable[[], float], is_over: Callable[[], bool], clock: Any) -> None:
    """Tick in simulated time; fails where it never gets there."""
    for _ in range(2000):
        if is_over():
            return
        clock.now += tick()
    raise AssertionError("it never got there")
