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
# What a run writes and needs again. Whatever else lies in its directory is not ours to copy, and a
# version from elsewhere writes nothing else.
_PATHS = (
    r"(?:run|before|checks|quantum|comparison)\.json",
    r"(?:metrics|quarantine)\.jsonl",
    r"metrics\.csv",
    r"tokenizer/\w[\w.+-]*\.(?:json|jinja|txt|model|tiktoken)",
    r"tensorboard/events\.out\.tfevents\.[\w.+-]+",
    r"logs/(?:\w+/)?\w+\.(?:jsonl|log)",
)
_FOLDERS = ("*", "tokenizer/*", "tensorboard/*", "logs/*", "logs/*/*")
_NAME = re.compile(rf"{CLASS}/({'|'.join(_PATHS)})@(\d{{9}})", re.ASCII)


def read_run_files(directory: Path) -> dict[str, TensorBytes]:
    """The files of the run in `directory` as tensors of bytes, named by path and offset."""
    tensors: dict[str, TensorBytes] = {}
    for path, data in _files(directory):
        for start in range(0, max(1, len(data)), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            tensors[_name(directory, path, start)] = TensorBytes("U8", (len(piece),), piece)
    return tensors


def restore_run_files(store: Store, manifest: Manifest, directory: Path) -> list[Path]:
    """Write the files that a version holds into `directory`, each whole or not at all.

    Raises:
        CheckpointError: the version is damaged, or it holds a file that no run has.
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


def _files(directory: Path) -> Iterator[tuple[Path, bytes]]:
    """The files and what they hold."""
    for path in sorted(path for pattern in _FOLDERS for path in directory.glob(pattern)):
        if _NAME.fullmatch(_name(directory, path, 0)) and not path.is_symlink():
            data = _read(path)
            if data is not None:
                yield path, data


def _read(path: Path) -> bytes | None:
    """None of what is no file or too large; a log that is rotated away just now is in the next
    version."""
    try:
        small = path.is_file() and path.stat().st_size <= LARGEST_BYTES
        return path.read_bytes() if small else None
    except FileNotFoundError:
        return None


def _name(directory: Path, path: Path, start: int) -> str:
    return f"{CLASS}/{path.relative_to(directory).as_posix()}@{start:09d}"


def _in_order(path: str, parts: Mapping[int, bytes]) -> Iterator[bytes]:
    end = 0
    for start, data in sorted(parts.items()):
        if start != end:
            raise CheckpointError(f"a version holds {path} with a gap at byte {end}")
        end += len(data)
        yield data
