"""A file system in memory, and what is left of it when the power goes."""

import errno
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infrastructure.backup.format.file_operations import Buffer, FileOperations

Files = dict[Path, bytes]


class MemoryFiles(FileOperations):
    """Files in a dictionary; every change is written to `log`."""

    is_direct = False

    def __init__(self, files: Files | None = None) -> None:
        self.files: Files = dict(files or {})
        self.log: list[tuple[Any, ...]] = []

    def read(self, path: Path) -> Iterator[bytes]:
        yield self._file(path)

    def read_into(self, path: Path, memory: memoryview) -> Iterator[int]:
        data = self._file(path)[: len(memory)]
        memory[: len(data)] = data
        yield len(data)

    def size(self, path: Path) -> int:
        return len(self._file(path))

    def names(self, directory: Path) -> list[str]:
        depth = len(directory.parts)
        inside = (path for path in self.files if path.is_relative_to(directory))
        return sorted({path.parts[depth] for path in inside})

    def free_bytes(self, directory: Path) -> int:
        return 1 << 40

    def make_directory(self, directory: Path) -> None:
        return

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        self.files[path] = b"".join(bytes(buffer) for buffer in buffers)
        self.log.append(("write", path, self.files[path]))

    def sync_file(self, path: Path) -> None:
        self.log.append(("sync_file", path))

    def sync_directory(self, directory: Path) -> None:
        self.log.append(("sync_directory", directory))

    def rename(self, source: Path, target: Path) -> None:
        self.files[target] = self.files.pop(source)
        self.log.append(("rename", source, target))

    def remove(self, path: Path) -> None:
        self._file(path)
        del self.files[path]
        self.log.append(("remove", path))

    def forget_cached(self, path: Path) -> None:
        return

    def _file(self, path: Path) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
        return self.files[path]


@dataclass
class Disk:
    """What the disk holds for sure, and what may or may not be there after a power cut.

    Bytes are sure after `sync_file`; a name, and its removal, after `sync_directory`. What is not
    sure is kept or lost in any combination, as POSIX allows; unsure bytes may be there in part.
    """

    sure_names: dict[Path, int] = field(default_factory=dict)
    unsure_names: list[tuple[Path, int | None]] = field(default_factory=list)
    names: dict[Path, int] = field(default_factory=dict)
    contents: dict[int, bytes] = field(default_factory=dict)
    sure_contents: set[int] = field(default_factory=set)

    def apply(self, entry: tuple[Any, ...]) -> None:
        """Take in one line of a log."""
        match entry:
            case ("write", path, data):
                number = len(self.contents)
                self.contents[number] = data
                self._name(path, number)
            case ("sync_file", path):
                self.sure_contents.add(self.names[path])
            case ("rename", source, target):
                number = self.names[source]
                self._name(target, number)
                self._name(source, None)
            case ("remove", path):
                self._name(path, None)
            case ("sync_directory", directory):
                for path, number in self.unsure_names:
                    if path.parent == directory:
                        set_name(self.sure_names, path, number)
                self.unsure_names = [u for u in self.unsure_names if u[0].parent != directory]

    def _name(self, path: Path, number: int | None) -> None:
        set_name(self.names, path, number)
        self.unsure_names.append((path, number))

    def after_power_loss(self) -> Iterator[Files]:
        """The states that the disk may be found in: each unsure change alone, all but it, all,
        none; unsure bytes whole, half or gone."""
        count = len(self.unsure_names)
        kept_sets = {frozenset(), frozenset(range(count))}
        for index in range(count):
            kept_sets |= {frozenset([index]), frozenset(range(count)) - {index}}
        for kept, part in itertools.product(sorted(kept_sets, key=sorted), (1.0, 0.5, 0.0)):
            names = dict(self.sure_names)
            for index in sorted(kept):
                set_name(names, *self.unsure_names[index])
            yield {path: self._content(number, part) for path, number in names.items()}

    def _content(self, number: int, part: float) -> bytes:
        data = self.contents[number]
        return data if number in self.sure_contents else data[: int(len(data) * part)]


def set_name(names: dict[Path, int], path: Path, number: int | None) -> None:
    """Give a file a name, or (None) take the name away."""
    if number is None:
        names.pop(path, None)
    else:
        names[path] = number


def states_after_power_loss(log: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Files]]:
    """Every distinct state after every prefix of `log`, with the length of the prefix."""
    disk = Disk()
    seen: set[tuple[int, int]] = set()
    for length, entry in enumerate([("start",), *log]):
        disk.apply(entry)
        for files in disk.after_power_loss():
            key = (length, hash(frozenset(files.items())))
            if key not in seen:
                seen.add(key)
                yield length, files
