"""Readers that yield local files in pieces, without loading a whole file into memory."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, overload

from infrastructure.backup.format.codec import SUFFIX, decompress
from infrastructure.backup.format.file_operations import CHUNK_BYTES, Buffer
from infrastructure.backup.format.hashing import hash_of, new_digest
from infrastructure.backup.format.manifest import Pack
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import CheckpointError
from infrastructure.core.integers import ceil_div


class OpenFile(Sequence[Buffer]):
    """An open file that yields a few megabytes at a time. It can be read even after the file is
    removed.

    Raises:
        CheckpointError: on iteration, if the bytes cannot be read.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self._file = path, file
        self.size_bytes = file.seek(0, os.SEEK_END)

    def close(self) -> None:
        self._file.close()

    def __len__(self) -> int:
        return ceil_div(self.size_bytes, CHUNK_BYTES)

    @overload
    def __getitem__(self, index: int) -> Buffer: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Buffer]: ...
    def __getitem__(self, index: int | slice) -> Buffer | Sequence[Buffer]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        start = index % len(self) * CHUNK_BYTES
        return self._read(start, min(CHUNK_BYTES, self.size_bytes - start))

    def _read(self, start: int, length: int) -> bytes:
        try:
            self._file.seek(start)
            parts = []
            while length > 0 and (part := self._file.read(length)):
                parts.append(part)
                length -= len(part)
        except OSError as error:
            raise CheckpointError("backup.file_unreadable", path=self.path, error=error) from error
        return b"".join(parts)


class OpenObject(OpenFile):
    """An open object that is verified while it is read.

    Iteration yields the last piece only if all bytes match `digest`, so a copy is either correct or
    incomplete.
    """

    def __init__(self, path: Path, file: BinaryIO, digest: str, hash_name: str) -> None:
        super().__init__(path, file)
        self._digest, self.hash_name = digest, hash_name

    def __iter__(self) -> Iterator[Buffer]:
        """Yield the pieces in order.

        Raises:
            CheckpointError: if the bytes do not match the object's hash, or cannot be read.
        """
        digest = new_digest(self.hash_name)
        for index in range(len(self)):
            piece = self[index]
            digest.update(piece)
            if index == len(self) - 1 and digest.hexdigest() != self._digest:
                raise CheckpointError("backup.local_file_bytes_changed", path=self.path.name[:12])
            yield piece


class PackedObject(OpenFile):
    """An open object whose file is compressed."""

    def __init__(self, path: Path, file: BinaryIO, pack: Pack, hash_name: str) -> None:
        super().__init__(path, file)
        self._pack, self._hash_name = pack, hash_name

    def load(self) -> tuple[bytes, list[Buffer]]:
        """Return the compressed bytes of the file and the uncompressed bytes, both in memory.

        Raises:
            CheckpointError: if the bytes do not match the object's hash, or cannot be read.
        """
        packed = b"".join(bytes(piece) for piece in self)
        try:
            plain = decompress(packed, self._pack.size_bytes)
        except CheckpointError as error:
            raise CheckpointError(
                "backup.local_object_problem", hash=self._pack.hash[:12], problem=error
            ) from error
        if hash_of(self._hash_name, [plain]) != self._pack.hash:
            raise CheckpointError("backup.local_object_bytes_changed", hash=self._pack.hash[:12])
        return packed, [plain]


def open_object(local: Store, pack: Pack, hash_name: str) -> OpenFile:
    """Open the file of an object, compressed or not.

    Raises:
        CheckpointError: if it is missing, truncated, or cannot be opened.
    """
    path = local.objects.path_of(pack.hash)
    try:
        file = OpenObject(path, local.operations.open(path), pack.hash, hash_name)
    except FileNotFoundError:
        return _open_packed(local, pack, hash_name)
    except OSError as error:
        raise CheckpointError(
            "backup.local_object_unreadable", hash=pack.hash[:12], error=error
        ) from error
    if file.size_bytes != pack.size_bytes:
        file.close()
        raise CheckpointError("backup.local_object_truncated", hash=pack.hash[:12])
    return file


def _open_packed(local: Store, pack: Pack, hash_name: str) -> OpenFile:
    path = local.objects.path_of(pack.hash + SUFFIX)
    try:
        return PackedObject(path, local.operations.open(path), pack, hash_name)
    except OSError as error:
        raise CheckpointError(
            "backup.local_object_missing", hash=pack.hash[:12], error=error
        ) from error


Progress = Callable[[int, int], None]
"""Called with the bytes that are done and the bytes of all."""
