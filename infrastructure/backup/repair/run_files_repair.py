"""Repair of the small files of a run from the copies that its checkpoints hold.

Each kind of file is checked in its own way. A record must match its checksum, a file that is
written once must equal its copy, and a file that only grows must begin with its copy. A run that
ends normally also records the hashes of all these files. This record is called its seal.
"""

import contextlib
import csv
import hashlib
import io
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Final

from infrastructure.backup.format.manifest import Manifest
from infrastructure.backup.format.store import Store
from infrastructure.backup.repair.run_repair import Outcome, Repair
from infrastructure.backup.state.run_files import joined_pieces, pieces_of
from infrastructure.core.checksums import has_checksum, parse_record, read_record
from infrastructure.core.errors import CheckpointError, DamagedFileError
from infrastructure.core.files import atomic_write, file_sha256
from infrastructure.core.json_text import parse_json
from infrastructure.core.line_file import rotated
from infrastructure.core.messages import phrase

log = logging.getLogger(__name__)

SUMMARY_FILE, REPORT_FILE = "summary.json", "report.html"
SEAL: Final = "files"  # the key in summary.json
MODEL_SUMS = "final/SHA256SUMS"
# The files that the seal covers: those that are not records with a checksum and never change after
# the end.
_SEALED = re.compile(
    r"(?:metrics|quarantine)\.jsonl|metrics\.csv|report\.html|final/SHA256SUMS"
    r"|tokenizer/.+|tensorboard/.+|logs/\w+/[\w.]+\.(?:jsonl|json|log)",
    re.ASCII,
)
_FOLDERS = ("*", "tokenizer/*", "tensorboard/*", "logs/*/*", MODEL_SUMS)


class FileKind(Enum):
    """The ways in which a run writes its files."""

    RECORD = auto()  # a JSON object with its checksum, replaced as a whole
    LIST = auto()  # a JSON list that grows
    ONCE = auto()  # written once
    LINES = auto()  # JSON lines, added one by one
    TABLE = auto()  # CSV: lines are added; a new column rewrites it
    EVENTS = auto()  # bytes that are added


def kind_of(path: str) -> FileKind:
    """Return the way in which a run writes the file `path`."""
    if path == "checks.json":
        return FileKind.LIST
    if path.startswith("tokenizer/") or path == "quarantine.jsonl":
        return FileKind.ONCE
    kinds = {".json": FileKind.RECORD, ".jsonl": FileKind.LINES, ".csv": FileKind.TABLE}
    return kinds.get(Path(path).suffix, FileKind.EVENTS)


def seal_of(directory: Path) -> dict[str, str]:
    """Return the hashes of the files of a finished run: path → hex SHA-256.

    Each file is synced to the disk before it is hashed.

    Raises:
        OSError: if a file cannot be read or synced.
    """
    seal = {}
    for pattern in _FOLDERS:
        for path in sorted(directory.glob(pattern)):
            name = path.relative_to(directory).as_posix()
            if _SEALED.fullmatch(name) and path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                seal[name] = file_sha256(path)
    return seal


def read_seal(directory: Path) -> dict[str, str]:
    """Return the recorded hashes of a finished run's files: path → hash; empty if there is no
    record.
    """
    with contextlib.suppress(OSError, DamagedFileError):
        seal = read_record(directory / SUMMARY_FILE).get(SEAL)
        if isinstance(seal, dict):
            return {str(name): str(digest) for name, digest in seal.items()}
    return {}


class RunFileRepair:
    """The repair of a run's small files from the copies in its checkpoints.

    Args:
        stores: the stores of the run's checkpoints; this machine's store comes first.
    """

    def __init__(self, directory: Path, stores: Sequence[Store]) -> None:
        self.directory, self.stores = directory, stores
        self.seal = read_seal(directory)
        self.manifests = list(self._readable(stores[0]))
        self._silent: set[int] = set()  # stores that do not respond

    def steps(self) -> Iterator[Repair]:
        """Repair every file for which a copy exists. Yield each file that was damaged.

        Raises:
            OSError: if the local disk fails.
        """
        known = self._known()
        for path in sorted(known):
            yield from self._file(path)
        for path in sorted(self.seal.keys() - known.keys() - {REPORT_FILE, MODEL_SUMS}):
            if _hash_of(self._read(path)) != self.seal[path]:
                text = phrase("backup.file_damaged_after_end", path=path)
                yield Repair(path, Outcome.LOST, text)
        try:
            read_record(self.directory / SUMMARY_FILE)
        except DamagedFileError as error:
            yield Repair(SUMMARY_FILE, Outcome.LOST, phrase("backup.summary_damaged", error=error))
        except FileNotFoundError:
            pass

    def _known(self) -> dict[str, list[str]]:
        """Return the run files that the newest checkpoint holds: path → names of their pieces."""
        try:
            return pieces_of(self.manifests[0]) if self.manifests else {}
        except CheckpointError as error:  # written by another release of Temper
            log.warning(phrase("backup.run_files_not_compared", error=error))
            return {}

    def names(self, prefix: str) -> list[str]:
        """Return the files in the newest checkpoint whose paths begin with `prefix`."""
        return [path for path in self._known() if path.startswith(prefix)]

    def restore(self, path: str) -> Repair | None:
        """Restore one file if it is damaged or missing and a checkpoint holds it."""
        return next(self._file(path), None)

    def _file(self, path: str) -> Iterator[Repair]:
        current, sealed = self._read(path), self.seal.get(path)
        if sealed is not None and _hash_of(current) == sealed:
            return
        copy, step = self._copy(path)
        problem = _problem(path, current, copy, self._is_rotated(path))
        if problem is None and sealed is not None:
            problem = phrase("backup.run_file_not_as_sealed")
        if problem is None:
            return
        if copy is None:
            text = phrase("backup.run_file_lost", path=path, problem=problem)
            yield Repair(path, Outcome.LOST, text)
            return
        whole, num_unreadable = _put_together(path, copy, current)
        with atomic_write(self.directory / path) as file:
            file.write(whole)
        text = phrase("backup.run_file_restored", path=path, problem=problem, step=step)
        if num_unreadable:
            text += phrase("backup.later_lines_unreadable", count=num_unreadable)
        is_whole = _hash_of(whole) == sealed if sealed is not None else not num_unreadable
        if sealed is not None and not is_whole:
            text += phrase("backup.later_content_lost")
        yield Repair(path, Outcome.REPAIRED if is_whole else Outcome.IN_PART, text)

    def _is_rotated(self, path: str) -> bool:
        return rotated(self.directory / path, 1).exists()

    def _read(self, path: str) -> bytes | None:
        try:
            return (self.directory / path).read_bytes()
        except OSError:  # missing, or unreadable on the disk
            return None

    def _copy(self, path: str) -> tuple[bytes | None, int]:
        """Return the newest intact copy of a file (None if there is none), and the step of its
        checkpoint.
        """
        for manifest in self.manifests:
            names = pieces_of(manifest).get(path)
            for number, store in enumerate(self.stores if names else ()):
                if number in self._silent:
                    continue
                try:
                    pieces = {name: bytes(t.data) for name, t in store.load(manifest, names=names)}
                    data = joined_pieces(path, pieces)
                    if kind_of(path) is FileKind.RECORD:
                        parse_record(data)  # it may have been damaged before it was copied
                    return data, manifest.step
                except DamagedFileError:
                    continue
                except (CheckpointError, OSError) as error:
                    cause = error if isinstance(error, OSError) else error.__cause__
                    if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
                        self._silent.add(number)
        return None, 0

    def _readable(self, store: Store) -> Iterator[Manifest]:
        for name in store.versions():
            with contextlib.suppress(CheckpointError):
                yield store.read(name)


def _hash_of(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()


def _problem(path: str, current: bytes | None, copy: bytes | None, is_rotated: bool) -> str | None:
    """Return what is wrong with a file, compared with its copy; None if nothing seems wrong."""
    if current is None:
        return phrase("backup.object_is_missing")
    kind = kind_of(path)
    if kind is FileKind.RECORD:
        return _problem_of_record(current, copy)
    if copy is None:
        return None
    if kind is FileKind.ONCE:
        return None if current == copy else phrase("backup.run_file_changed")
    if kind is FileKind.LIST:
        return None if _continues(current, copy) else phrase("backup.run_file_changed")
    if kind is FileKind.TABLE:
        return None if _has_rows(current, copy) else phrase("backup.run_file_lines_changed")
    if not current.startswith(copy):
        return None if is_rotated else phrase("backup.run_file_content_changed")
    if kind is FileKind.LINES and _sorted_out(current[len(copy) :])[1]:
        return phrase("backup.run_file_lines_unreadable")
    return None


def _problem_of_record(current: bytes, copy: bytes | None) -> str | None:
    try:
        parse_record(current)
    except DamagedFileError as error:
        return str(error)
    if copy is not None and not has_checksum(current) and has_checksum(copy):
        return phrase("backup.run_file_lost_checksum")
    return None


def _continues(current: bytes, copy: bytes) -> bool:
    """Return whether a JSON list continues its copy. The list may have lost its oldest entries."""
    try:
        now, was = parse_json(current), parse_json(copy)
    except ValueError:
        return False
    if not isinstance(now, list) or not isinstance(was, list):
        return False
    if len(now) < len(was):
        return False
    gone_by = range(max(1, len(was)))
    return any(now[: len(was) - gone] == was[gone:] for gone in gone_by)


def _has_rows(current: bytes, copy: bytes) -> bool:
    """Return whether a CSV file begins with the rows of its copy. The file may have more
    columns.
    """
    try:
        now, was = _rows(current), _rows(copy)
    except (UnicodeDecodeError, csv.Error):
        return False
    return now[: len(was)] == was


def _rows(data: bytes) -> list[dict[str, object]]:
    """Return the rows of a CSV file without their empty cells."""
    whole = data[: data.rfind(b"\n") + 1].decode()
    rows = csv.DictReader(io.StringIO(whole))
    return [{str(key): value for key, value in row.items() if value} for row in rows]


def _put_together(path: str, copy: bytes, current: bytes | None) -> tuple[bytes, int]:
    """Return the copy followed by the readable lines added since, and the number of unreadable
    lines.
    """
    kind = kind_of(path)
    added = b"" if current is None else current[len(copy) :]
    if kind is FileKind.LINES:
        end = copy.rfind(b"\n") + 1
        lines, num_unreadable = _sorted_out(copy[end:] + added)
        return copy[:end] + lines, num_unreadable
    if kind is FileKind.EVENTS:
        return copy + added, 0
    if kind is FileKind.TABLE and current is not None:
        end = added.rfind(b"\n") + 1
        same_head = current.partition(b"\n")[0] == copy.partition(b"\n")[0]
        return copy + (added[:end] if same_head else b""), 0
    return copy, 0


def _sorted_out(data: bytes) -> tuple[bytes, int]:
    """Return the lines that are JSON objects, and the number of complete lines that are not.

    An incomplete last line, which a killed process may leave, is dropped and not counted.
    """
    kept, num_unreadable = [], 0
    for line in data.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        try:
            is_record = isinstance(parse_json(line), Mapping)
        except ValueError:
            is_record = False
        kept += [line] if is_record else []
        num_unreadable += not is_record
    return b"".join(kept), num_unreadable
