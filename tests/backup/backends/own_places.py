"""Storage backends of somebody's own, in a module that another process can import."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from infrastructure.backup.backends.base import Content, Place, require_content
from infrastructure.backup.format.file_operations import Buffer

WRITERS = "writers"


class FilesPlace(Place):
    """Files in one flat folder, `…://<folder>`, and who has written each of them."""

    is_slow = False

    def __init__(self, url: str) -> None:
        self.url = url
        self.folder = Path(url.partition("://")[2])

    def _file(self, path: Path) -> Path:
        return self.folder / "!".join(self.parts_of(path))

    def read(self, path: Path) -> Iterator[bytes]:
        yield self._file(path).read_bytes()

    def size(self, path: Path) -> int:
        return self._file(path).stat().st_size

    def names(self, directory: Path) -> list[str]:
        prefix = "".join(f"{part}!" for part in self.parts_of(directory))
        names = [file.name for file in self.folder.iterdir() if file.name != WRITERS]
        found = [name for name in names if name.startswith(prefix)]
        if not found:
            raise FileNotFoundError(directory)
        return sorted({name[len(prefix) :].partition("!")[0] for name in found})

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file(path).write_bytes(b"".join(buffers))
        with (self.folder / WRITERS).open("a") as file:
            file.write(f"{os.getpid()}\n")

    def remove(self, path: Path) -> None:
        self._file(path).unlink()

    def confirm(self, path: Path, content: Content) -> bool:
        self.require_identity()
        require_content(self, path, content)
        return True


class LacksConfirm(Place):
    """No `confirm`."""

    url, is_slow = "lacking", False

    def __init__(self, url: str) -> None: ...

    def read(self, path: Path) -> Any: ...

    def size(self, path: Path) -> Any: ...

    def names(self, directory: Path) -> Any: ...

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None: ...

    def remove(self, path: Path) -> None: ...


def open_files(url: str) -> Place:
    """A function that makes one is a backend, too."""
    return FilesPlace(url)


def open_nothing(url: str) -> object:
    """No place at all."""
    return url
