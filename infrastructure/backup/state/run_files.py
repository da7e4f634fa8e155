"""The small files of a run, stored as byte tensors in its checkpoints.

With them, another machine can resume the run from a checkpoint alone. A file is cut into pieces, so
that the unchanged beginning of a growing file is stored only once.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from infrastructure.backup.format.manifest import FILES as CLASS
from infrastructure.backup.format.manifest import Manifest
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import CheckpointError
from infrastructure.core.features import run_files_of_features
from infrastructure.core.files import atomic_write
from infrastructure.core.messages import phrase

PIECE_BYTES = 256 * 1024
LARGEST_BYTES = 64 * 1024**2  # of one file; only checkpoints are larger
# The files that a run writes and needs again. Other files in its directory are not copied, and a
# version from elsewhere cannot write any other file.
_PATHS = (
    r"(?:run|before|checks|forecast|trained_rows)\.json",
    r"(?:metrics|quarantine)\.jsonl",
    r"metrics\.csv",
    r"tokenizer/\w[\w.+-]*\.(?:json|jinja|txt|model|tiktoken)",
    r"tensorboard/events\.out\.tfevents\.[\w.+-]+",
    r"logs/(?:\w+/)?\w+\.(?:jsonl|log)",
)
_FOLDERS = ("*", "tokenizer/*", "tensorboard/*", "logs/*", "logs/*/*")


@cache
def _name_pattern() -> re.Pattern[str]:
    paths = [*_PATHS, *map(re.escape, run_files_of_features())]
    return re.compile(rf"{CLASS}/({'|'.join(paths)})@(\d{{9}})", re.ASCII)


def read_run_files(directory: Path) -> dict[str, TensorBytes]:
    """Read the files of the run in `directory` as byte tensors, named by path and offset."""
    tensors: dict[str, TensorBytes] = {}
    for path, data in _files(directory):
        for start in range(0, max(1, len(data)), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            tensors[_name(directory, path, start)] = TensorBytes("U8", (len(piece),), piece)
    return tensors


def restore_run_files(store: Store, manifest: Manifest, directory: Path) -> list[str]:
    """Write the files that a checkpoint holds into `directory`, each atomically.

    Returns:
        A message for each file whose copy is damaged. Such a file is not written.

    Raises:
        CheckpointError: if the checkpoint holds a file that does not belong to a run.
        OSError: if the disk fails.
    """
    lost = []
    for path, names in pieces_of(manifest).items():
        try:
            pieces = {name: bytes(t.data) for name, t in store.load(manifest, names=names)}
        except CheckpointError as error:
            lost.append(phrase("backup.run_file_not_restored", path=path, error=error))
            continue
        data = joined_pieces(path, pieces)
        with atomic_write(directory / path) as file:
            file.write(data)
    return lost


def pieces_of(manifest: Manifest) -> dict[str, list[str]]:
    """Return the run files that a checkpoint holds: path → full names of the tensors of its pieces.

    Raises:
        CheckpointError: if the checkpoint holds a file that does not belong to a run.
    """
    pieces: dict[str, list[str]] = {}
    for name in manifest.tensors:
        if name.partition("/")[0] == CLASS:
            match = _name_pattern().fullmatch(name)
            if match is None:
                raise CheckpointError("backup.unknown_file_in_checkpoint", name=name[:80])
            pieces.setdefault(match[1], []).append(name)
    return pieces


def joined_pieces(path: str, pieces: Mapping[str, bytes]) -> bytes:
    """Join the tensors of the file `path` and return its contents.

    Raises:
        CheckpointError: if a piece is missing.
    """
    parts = {int(name.rpartition("@")[2]): data for name, data in pieces.items()}
    return b"".join(_in_order(path, parts))


def _files(directory: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the paths and contents of the files of a run that belong in a checkpoint."""
    for path in sorted(path for pattern in _FOLDERS for path in directory.glob(pattern)):
        if _name_pattern().fullmatch(_name(directory, path, 0)) and not path.is_symlink():
            data = _read(path)
            if data is not None:
                yield path, data


def _read(path: Path) -> bytes | None:
    """Read a file; return None if it is missing, too large, or not a file.

    A log file that is missing because it is being rotated is saved with the next checkpoint.
    """
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
            raise CheckpointError("backup.gap_in_run_file", path=path, offset=end)
        end += len(data)
        yield data
