"""The cache of prepared data on this machine's disk.

An entry is built in a hidden folder and renamed when it is complete, so a killed preparation leaves
no incomplete entry. While an entry is in use, a lock protects it from being deleted. A second
process that needs an entry under construction waits for the first. The lock of a process is
released when the process dies. The cache works only on POSIX systems.
"""

import logging
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.core.cache_folder import cache_directory
from infrastructure.core.errors import InputError
from infrastructure.core.files import sync_directory
from infrastructure.core.helper_process import refuse_to_train_in_worker
from infrastructure.core.lock import Lock
from infrastructure.core.messages import phrase
from infrastructure.data.store.token_store import DamagedEntryError, TokenStore

logger = logging.getLogger(__name__)

MEGABYTE = 10**6
SECONDS_PER_DAY = 86_400
LOCK = "in_use.lock"
REMOVED = ".removed-"


@dataclass(frozen=True)
class CacheEntry:
    """An open cache entry, which the cache does not delete before `close` is called.

    Attributes:
        was_there: True if the entry was found in the cache, False if it was built now.
    """

    store: TokenStore
    was_there: bool
    lock: Lock

    def close(self) -> None:
        """Release the entry, so that the cache may delete it."""
        self.lock.release()


class TokenCache:
    """A cache of prepared data by key, within the limits of `CacheConfig`.

    Args:
        config: the settings of the cache. An entry smaller than `memory_size` is loaded into memory
            when it is opened.
        memory_bytes: a further limit on the entries held in memory.

    Raises:
        ValueError: the directory cannot be written.
    """

    def __init__(self, config: CacheConfig, memory_bytes: int | None = None) -> None:
        self.config = config
        in_cache = config.memory_size * MEGABYTE
        self.memory_bytes = in_cache if memory_bytes is None else min(in_cache, memory_bytes)
        self.root = cache_directory(config.directory) / "tokens"
        self._locks = self.root / ".locks"
        try:
            self._locks.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.root).close()
        except OSError as error:
            raise InputError(
                "data.cache_not_writable", folder=self.root, reason=error.strerror
            ) from error

    def open(self, key: str, build: Callable[[Path], None]) -> CacheEntry:
        """Return the entry with this key, after building it if it is missing or damaged.

        Args:
            build: writes the entry into the empty folder that it is given.
        """
        self.sweep_if_due()
        with self._locked(key):
            entry = self._existing(key, was_there=True)
            if entry is not None:
                return entry
            self._build(key, build)
            entry = self._existing(key, was_there=False)
        if entry is None:
            raise OSError(phrase("data.cache_entry_damaged_at_once", path=self.root / key))
        self.evict()
        return entry

    def _existing(self, key: str, was_there: bool) -> CacheEntry | None:
        folder = self.root / key
        if not folder.is_dir():
            return None
        lock = Lock(folder / LOCK)
        lock.take(shared=True)
        try:
            store = TokenStore(folder, self.memory_bytes)
        except DamagedEntryError as error:
            logger.warning(phrase("data.cache_entry_damaged", folder=folder, reason=error))
            lock.release()
            self._delete(folder)
            return None
        os.utime(folder / LOCK)
        return CacheEntry(store, was_there, lock)

    def _build(self, key: str, build: Callable[[Path], None]) -> None:
        partial = Path(tempfile.mkdtemp(prefix=f".partial-{key}-", dir=self.root))
        try:
            build(partial)
            for path in partial.iterdir():
                _sync_file(path)
            sync_directory(partial)
            partial.rename(self.root / key)
            sync_directory(self.root)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        refuse_to_train_in_worker()  # it would wait forever for the process that started it
        lock = Lock(self._locks / key)
        lock.take()
        try:
            yield
        finally:
            lock.release()

    def sweep_if_due(self) -> None:
        """Clean up the cache if the last cleanup was more than `cleanup_interval` ago."""
        stamp = self.root / ".swept"
        if stamp.exists() and time.time() - stamp.stat().st_mtime < self.config.cleanup_interval:
            return
        stamp.touch()
        self.sweep()

    def sweep(self) -> None:
        """Delete old entries and remains of dead processes, and then further entries to meet
        `disk_size`.
        """
        oldest = time.time() - self.config.max_age_days * SECONDS_PER_DAY
        for folder in self.root.glob(".partial-*"):
            self._remove_if_free(folder, key=folder.name.split("-")[1])
        for folder in self.root.glob(f"{REMOVED}*"):
            shutil.rmtree(folder, ignore_errors=True)
        for folder in self._entries():
            if _last_use(folder) < oldest:
                self._remove_if_free(folder, key=folder.name)
        self.evict()

    def size_bytes(self) -> int:
        """Return the disk space that all entries take together."""
        return sum(map(_size, self._entries()))

    def evict(self) -> None:
        """Delete the least recently used entries until the others fit into `disk_size`."""
        entries = self._entries()
        sizes = {folder: _size(folder) for folder in entries}
        limit = self.config.disk_size * MEGABYTE
        for folder in entries:
            if sum(sizes.values()) <= limit:
                return
            if self._remove_if_free(folder, key=folder.name):
                del sizes[folder]
        if sum(sizes.values()) > limit:
            logger.warning(
                phrase(
                    "data.cache_too_small",
                    megabytes=sum(sizes.values()) / MEGABYTE,
                    root=self.root,
                    limit=self.config.disk_size,
                )
            )

    def _entries(self) -> list[Path]:
        """Return the folders of all entries, the least recently used first."""
        folders = [p for p in self.root.iterdir() if p.is_dir() and not p.name.startswith(".")]
        return sorted(folders, key=_last_use)

    def _remove_if_free(self, folder: Path, key: str) -> bool:
        """Delete an entry unless a live process builds or uses it; return whether it was
        deleted.
        """
        building = Lock(self._locks / key)
        try:
            if not building.take(wait=False):
                return False
            if not folder.is_dir():
                return True
            using = Lock(folder / LOCK)
            try:
                if using.take(wait=False):
                    self._delete(folder)
                    return True
            finally:
                using.release()
        finally:
            building.release()
        return False

    def _delete(self, folder: Path) -> None:
        """Rename and then delete a folder, so that no process opens it when it is half deleted.

        Other processes may delete the same folder at the same time.
        """
        hidden = self.root / f"{REMOVED}{secrets.token_hex(4)}"
        with suppress(FileNotFoundError):
            folder.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)


def _last_use(folder: Path) -> float:
    for path in (folder / LOCK, folder):
        with suppress(FileNotFoundError):  # another process may sweep at the same time
            return path.stat().st_mtime
    return 0.0


def _size(folder: Path) -> int:
    with suppress(FileNotFoundError):
        return sum(path.stat().st_size for path in folder.iterdir())
    return 0


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
