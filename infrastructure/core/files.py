"""Files that are either complete or absent: atomic writes, hashes, directory syncs."""

import ctypes
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from infrastructure.core.errors import InputError
from infrastructure.core.lock import try_lock
from infrastructure.core.messages import phrase

HASH_CHUNK_BYTES = 1 << 20
_PART = re.compile(r"\..+\.[a-z0-9_]{8}\.part")  # the names that `_new_part_file` makes
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # from linux/fcntl.h and linux/fs.h


def sync_directory(directory: Path) -> None:
    """Sync a directory to the disk, so that renames in it survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path, mode: int = 0o777) -> None:
    """Create a directory and its missing parents, and sync them to the disk."""
    if not os.path.lexists(directory.parent):
        make_directory(directory.parent)
    if not directory.is_dir():
        directory.mkdir(mode, exist_ok=True)
        sync_directory(directory.parent)


def require_listable(directory: Path) -> None:
    """Raise an error if a folder cannot be listed, because `glob` would treat it as empty.

    Raises:
        PermissionError: if the folder cannot be listed. The error names it.
    """
    if not os.access(directory, os.R_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file next to `path` for writing, and on success rename it to `path`.

    The bytes are on the disk before the rename, so a reader never sees an incomplete file. On an
    exception the temporary file is removed and `path` stays as it was. The temporary file is
    locked, so that `remove_parts` does not remove it.
    """
    make_directory(path.parent)
    descriptor, part = _new_part_file(path)
    lock = os.dup(descriptor)  # held until the part is renamed
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    finally:
        os.close(lock)
    sync_directory(path.parent)


def _new_part_file(path: Path) -> tuple[int, Path]:
    """Create and lock a temporary file for `path`. Return its file descriptor and its path.

    Its permissions follow the umask, like those of any new file.
    """
    while True:
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        try:
            descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            continue
        is_locked = try_lock(descriptor)
        if is_locked is None or (is_locked and part.exists()):  # without locks, it is never removed
            return descriptor, part
        os.close(descriptor)  # another process took it for a leftover, and removes it


def remove_parts(directory: Path) -> None:
    """Remove the temporary files of `atomic_write` that killed processes left in `directory`.

    Locked files are kept, because a running process is writing them. On a file system without
    locks, all files are kept.
    """
    with suppress(OSError):
        for part in directory.glob(".*.part"):
            if _PART.fullmatch(part.name) and part.is_file():
                remove_if_unlocked(part)


def remove_if_unlocked(path: Path) -> bool:
    """Remove a file unless a running process has locked it. Return whether the file is gone.

    On a file system without locks, keep the file and return False.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        if not try_lock(descriptor):  # a process writes it, or that is unknown
            return False
        path.unlink(missing_ok=True)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def write_text(path: Path, text: str) -> None:
    r"""Write `text` (UTF-8) atomically.

    The text may contain a path that is not UTF-8. Python represents the bytes of such a path as
    surrogates, which UTF-8 cannot encode. They are written as \udcXX, which JSON reads back as the
    same surrogates.
    """
    with atomic_write(path) as file:
        file.write(text.encode(errors="backslashreplace"))


def readable_path(path: str | Path) -> str:
    r"""Return a path as text that can be displayed. Bytes that are not UTF-8 become \xXX."""
    return os.fsencode(path).decode(errors="backslashreplace")


def is_utf8(path: str | Path) -> bool:
    """Return whether a path is valid UTF-8 text."""
    return readable_path(path) == str(path)


def write_json(path: Path, value: object) -> None:
    """Write `value` as indented JSON, atomically. Raise ValueError for NaN, which is not JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


@contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """Yield a temporary directory, which is renamed to `directory` after the block.

    All files are on the disk before the rename. An existing directory is replaced, on Linux's own
    file systems atomically. On other file systems the existing directory is renamed first; if the
    process is killed at that moment, `recover_directory` restores it. On an exception, the
    temporary directory is removed and the existing one stays.
    """
    make_directory(directory.parent)
    recover_directory(directory)
    part, descriptor = _new_part(directory)
    try:
        yield part
        _sync_tree(part)
        _give_name(part, directory)
        sync_directory(directory.parent)
    finally:
        _remove(part)  # unfinished, or by now the older directory
        os.close(descriptor)


def recover_directory(directory: Path) -> None:
    """Clean up after a process that was killed in `whole_directory`.

    Call this before reading the directory. If that process had already renamed the existing
    directory, this is undone. Other remains of the killed process are removed. Files of running
    processes are not touched.
    """
    pattern = re.compile(rf"\.{re.escape(directory.name)}\.([0-9a-f]{{8}})\.(?:part|old)")
    with suppress(OSError):
        names = [path.name for path in directory.parent.iterdir()]
        for token in sorted({match[1] for match in map(pattern.fullmatch, names) if match}):
            with suppress(OSError):  # its process is alive, or another one is recovering it
                _recover(directory, token)


def _recover(directory: Path, token: str) -> None:
    part, aside = _neighbour(directory, token, "part"), _neighbour(directory, token, "old")
    descriptor, is_dead = _lock(part) if part.is_dir() else (None, True)
    try:
        if os.path.lexists(aside) and not os.path.lexists(directory):
            aside.rename(directory)
            sync_directory(directory.parent)
        if is_dead:
            _remove(part)
            _step_down(aside, part)
            _remove(part)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _neighbour(directory: Path, token: str, kind: str) -> Path:
    """Return the path of a temporary directory next to `directory`.

    The kind is "part" (incomplete, may be removed) or "old" (complete, may be restored).
    """
    return directory.with_name(f".{directory.name}.{token}.{kind}")


def _new_part(directory: Path) -> tuple[Path, int]:
    """Create and lock a temporary directory. Return its path and the descriptor of the lock."""
    while True:
        part = _neighbour(directory, secrets.token_hex(4), "part")
        part.mkdir()
        with suppress(FileNotFoundError, BlockingIOError):  # another process took it for a leftover
            descriptor, _ = _lock(part)
            if part.exists():
                return part, descriptor
            os.close(descriptor)


def _lock(directory: Path) -> tuple[int, bool]:
    """Lock a directory. Return a file descriptor, and whether the file system supports locks.

    Raises:
        BlockingIOError: if another living process holds the lock.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        return descriptor, False
    return descriptor, True


def _give_name(part: Path, directory: Path) -> None:
    """Rename `part` to `directory`. If `directory` exists, the two swap their names."""
    if not os.path.lexists(directory):
        part.rename(directory)
        return
    if exchange(part, directory):
        return
    aside = part.with_suffix(".old")
    directory.rename(aside)
    try:
        part.rename(directory)
    except BaseException:
        aside.rename(directory)
        raise
    _step_down(aside, part)


def _step_down(aside: Path, part: Path) -> None:
    """Rename a replaced directory to `part`, so that it is removed instead of being restored."""
    with suppress(FileNotFoundError):
        aside.rename(part)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def exchange(first: Path, second: Path) -> bool:
    """Swap two files or directories atomically. Return False if the system cannot do this."""
    rename = _renameat2()
    if rename is None:
        return False
    names = [os.fsencode(name) for name in (first, second)]
    return bool(rename(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0)


@cache
def _renameat2() -> Any:
    """Return the C library's function `renameat2` (Linux, glibc 2.28 or newer), or None."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    number, name = ctypes.c_int, ctypes.c_char_p
    function.argtypes = [number, name, number, name, ctypes.c_uint]
    return function


def _sync_tree(directory: Path) -> None:
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        else:
            sync_directory(path)
    sync_directory(directory)


def paths_below(directory: Path) -> Iterator[Path]:
    """Yield all paths below a folder, even while other processes remove parts of it.

    Paths that are removed meanwhile are left out. (Up to Python 3.12, `Path.rglob` raises
    FileNotFoundError for such paths.) For a folder that does not exist or cannot be read, nothing
    is yielded.
    """
    for folder, folders, files in os.walk(directory):
        yield from (Path(folder, name) for name in (*folders, *files))


def file_sha256(path: Path) -> str:
    """Return the hex SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def refuse_what_is_there(folder: Path) -> None:
    """Check that an output folder is empty, because Temper never overwrites files.

    Raises:
        ValueError: if `folder` is a file, is not empty, or cannot be written.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        what = "core.contains_other_files" if folder.is_dir() else "core.is_a_file"
        raise InputError("core.folder_not_empty", folder=folder, problem=phrase(what))
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(above, os.W_OK):
        raise InputError("core.folder_not_writable", folder=above)
