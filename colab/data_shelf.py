"""A local store of downloaded data, so that nothing is downloaded twice.

`folder/NAME` is the data; `folder/.fetched/KEY/` holds the record, the lock and unfinished
transfers. The key is a hash, because a source may contain secrets.
"""

import hashlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from infrastructure.core.cache_folder import cache_directory
from infrastructure.core.errors import InputError
from infrastructure.core.files import file_sha256, sync_directory, write_json
from infrastructure.core.json_text import as_object, parse_json
from infrastructure.core.lock import Lock
from infrastructure.core.messages import phrase

KEY_LENGTH = 16
HIDDEN = ".fetched"


@dataclass(frozen=True)
class FetchedData:
    """The record of fetched data.

    Attributes:
        sha256: the hash of the file.
        version: the version that the source reported, or None.
        changed_ns: the time when the local file was last changed, in nanoseconds, or None if
            the file was not completely stored.
    """

    name: str
    sha256: str
    version: str | None
    size_bytes: int = 0
    changed_ns: int | None = None


class Shelf:
    """The storage of one source's data. In a `with` block, no other process can fetch it.

    Args:
        folder: the folder for the data; by default, a separate folder in Temper's cache.
        identity: a text that is equal for equal sources.

    Raises:
        ValueError: if the folder cannot be written to.
    """

    def __init__(self, folder: Path | None, identity: str) -> None:
        key = hashlib.sha256(os.fsencode(identity)).hexdigest()[:KEY_LENGTH]
        own = cache_directory() / "data" / key
        self.folder = (own if folder is None else folder.expanduser()).absolute()
        self._own = self.folder / HIDDEN / key
        self.work = self._own / "work"
        self._record_file = self._own / "record.json"

    def __enter__(self) -> Self:
        try:
            self._own.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self._own / "lock")
        except OSError as error:
            raise InputError(
                "notebook.folder_not_writable", folder=self.folder, error=error.strerror
            ) from error
        if not self._lock.take(wait=False, where_there_are_none=True):
            print(phrase("notebook.waiting_for_same_download", folder=self.folder))
            self._lock.take()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def fetched(self, sha256: str | None, version: str | None) -> Path | None:
        """Return data that was fetched earlier; None if it is missing or differs from the requested
        data.

        Args:
            sha256: the required hash; None accepts any.
            version: the version that the source reports now; None skips this check.

        Raises:
            ValueError: if the file was changed since it was fetched.
        """
        record = self._read()
        path = self.folder / record.name if record else self.folder
        if record is None or (version is not None and version != record.version):
            return None
        if not path.is_file() or not self._is_unchanged(path, record):
            return None
        return path if sha256 in (None, record.sha256) else None

    def accept(self, name: str) -> None:
        """Check that storing data as `name` would not overwrite a user's file.

        Raises:
            ValueError: if a user's file has this name; the message says what to do.
        """
        record, path = self._read(), self.folder / name
        if not path.exists() and not path.is_symlink():
            return
        if record is None or record.name != name or not path.is_file():
            raise InputError("notebook.name_is_taken", path=path)
        self._is_unchanged(path, record)

    def put(self, part: Path, name: str, sha256: str, version: str | None) -> Path:
        """Store the complete file `part` as `name`."""
        path = self.folder / name
        self._write(FetchedData(name, sha256, version))
        part.replace(path)
        sync_directory(self.folder)
        status = path.stat()
        self._write(FetchedData(name, sha256, version, status.st_size, status.st_mtime_ns))
        return path

    def _is_unchanged(self, path: Path, record: FetchedData) -> bool:
        """Return whether a file is unchanged since it was fetched and completely stored.

        Raises:
            ValueError: if the user has changed the file, which is therefore kept.
        """
        status = path.stat()
        if (status.st_size, status.st_mtime_ns) == (record.size_bytes, record.changed_ns):
            return True
        if file_sha256(path) == record.sha256:
            return True
        if record.changed_ns is None:
            return False
        raise InputError("notebook.fetched_file_changed", path=path)

    def _write(self, record: FetchedData) -> None:
        write_json(self._record_file, asdict(record))

    def _read(self) -> FetchedData | None:
        try:
            written: dict[str, Any] = as_object(parse_json(self._record_file.read_text()))
            return FetchedData(**written)
        except (OSError, ValueError, TypeError):
            return None
