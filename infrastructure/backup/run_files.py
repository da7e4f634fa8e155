"""The small files of a run, as tensors of bytes in its versions.

So a version holds all that a run directory is made of, and another machine needs nothing else. A
file is cut into pieces, so that one that only grows is stored once.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from infrastructure.backup.manifest import Manifest
from infrastructure.backup.packs import TensorBytes
from infrastructure.backup.store import Store
from infrastructure.core.errors import CheckpointError
from infrastructure.core.files import atomic_write

CLASS = "files"
PIECE_BYTES = 256 * 1024
LARGEST_BYTES = 64 * 1024**2  # of one file; a run writes no larger one beside its checkpoints
_PART = r"[A-Za-z0-9_][A-Za-z0-9._+-]*"
_NAME = re.compile(rf"{CLASS}/((?:{_PART}/)*{_PART})@(\d{{9}})")


def read_run_files(directory: Path, left_out: frozenset[str]) -> dict[str, TensorBytes]:
    """The files under `directory` as tensors of bytes, named by path and offset.

    Args:
        left_out: names, directly in `directory`, of what is not taken.
    """
    tensors: dict[str, TensorBytes] = {}
    for path in _files(directory, left_out):
        data = path.read_bytes()
        for start in range(0, max(1, len(data)), PIECE_BYTES):
            name = f"{CLASS}/{path.relative_to(directory).as_posix()}@{start:09d}"
            if _NAME.fullmatch(name):
                piece = data[start : start + PIECE_BYTES]
                tensors[name] = TensorBytes("U8", (len(piece),), piece)
    return tensors


def restore_run_files(store: Store, manifest: Manifest, directory: Path) -> list[Path]:
    """Write the files that a version holds into `directory`, each whole or not at all.

    Raises:
        CheckpointError: the version is damaged, or a name leads out of `directory`.
        OSError: the disk refuses.
    """
    pieces: dict[str, dict[int, bytes]] = {}
    for name, tensor in store.load(manifest, only=CLASS):
        found = _NAME.fullmatch(name)
        if found is None:
            raise CheckpointError(f"a version holds a file with the name {name[:80]!r}")
        pieces.setdefault(found[1], {})[int(found[2])] = bytes(tensor.data)
    files = {path: b"".join(_in_order(path, parts)) for path, parts in pieces.items()}
    for path, data in files.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(target) as file:
            file.write(data)
    return [directory / path for path in files]


def _files(directory: Path, left_out: frozenset[str]) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        if path.name in left_out or path.is_symlink():
            continue
        if path.is_dir():
            yield from _files(path, frozenset())
        elif path.is_file() and path.stat().st_size <= LARGEST_BYTES:
            yield path


def _in_order(path: str, parts: Mapping[int, bytes]) -> Iterator[bytes]:
    end = 0
    for start, data in sorted(parts.items()):
        if start != end:
            raise CheckpointError(f"a version holds {path} with a gap at byte {end}")
        end += len(data)
        yield data
